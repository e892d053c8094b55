"""Where the time of a step goes, by rank, out of profiler traces."""
