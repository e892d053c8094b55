"""One graph of who waits for whom, from all sources, and its roots."""
