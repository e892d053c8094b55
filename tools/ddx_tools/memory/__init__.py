"""What holds the memory of GPUs and hosts, and what a plan would need."""
