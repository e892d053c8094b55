"""Probe `consistency`: values that ranks hold, compared offline."""
