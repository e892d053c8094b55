"""The mesh of parallel dimensions: its axes, groups and arithmetic."""
