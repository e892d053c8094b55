"""Who takes part in which collective, who waits for whom, and who is the odd one: of all sources together."""
