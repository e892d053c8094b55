"""Selects the hosts of a job and the way to reach them."""
