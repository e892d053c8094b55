"""Measured bandwidth of collectives."""
