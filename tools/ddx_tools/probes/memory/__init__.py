"""Probe `memory`: what holds GPU memory."""
