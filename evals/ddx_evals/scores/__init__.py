"""Measurements over whole splits: what `ddx evals scores` prints."""
