"""Analysis of who waits for whom, based on the stacks of all ranks."""
