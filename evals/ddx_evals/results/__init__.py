"""Results of systems on incidents: a run of the suite, its summaries, and the differences between two runs."""
