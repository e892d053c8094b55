"""Texts of networks."""
