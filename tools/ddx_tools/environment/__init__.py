"""What the settings of a job say: rows in, findings out."""
