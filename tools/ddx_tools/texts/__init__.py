"""What lies beside the logs: programs, diffs, printed values, stacks of other debuggers. Each thing with its line."""
