"""The distributed jobs in a process table: which process is which rank, and in what state."""
