"""Probe `jobs`: the distributed jobs of a host."""
