"""The wait graph: who waits for whom according to all sources, and the roots of all waits."""
