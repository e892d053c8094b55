"""Texts of machines."""
