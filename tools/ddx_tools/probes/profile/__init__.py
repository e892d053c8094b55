"""Probe `profile`: where the time of a step goes, by rank."""
