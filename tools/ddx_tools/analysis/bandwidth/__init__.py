"""Measured bandwidths of collectives."""
