"""Who waits for whom by the stacks of all ranks."""
