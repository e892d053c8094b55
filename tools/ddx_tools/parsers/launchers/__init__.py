"""Launchers, schedulers and their processes."""
