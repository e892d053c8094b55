"""Probe `mesh`: the parallel dimensions of a job, and whether they fit."""
