"""The mesh of parallel dimensions: its axes, process groups and arithmetic."""
