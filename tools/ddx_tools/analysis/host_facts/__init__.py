"""Access to the rows of `host_facts`, for analyses."""
