"""Results of systems on incidents: a run of the suite, its summaries, and what changed between two runs."""
