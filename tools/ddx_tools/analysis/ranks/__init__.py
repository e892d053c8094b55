"""Where each rank runs, and when the ranks began to work together."""
