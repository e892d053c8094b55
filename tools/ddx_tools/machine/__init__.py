"""What texts of a machine say: texts to rows of host_facts, and rows to findings."""
