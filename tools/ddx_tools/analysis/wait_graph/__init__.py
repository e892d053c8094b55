"""One graph of who waits for whom, out of all sources, and where all of its waiting ends."""
