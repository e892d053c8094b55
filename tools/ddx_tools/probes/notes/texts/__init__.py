"""Programs, diffs and printed values beside the logs."""
