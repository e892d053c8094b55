"""From results to a terminal. Data is drawn here and nowhere else."""
