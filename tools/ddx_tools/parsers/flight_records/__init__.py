"""Parsers of flight records."""
