"""Lines of jobs' logs."""
