"""Programs, diffs and printed values that lie beside the logs."""
