"""Parsers of texts about machines."""
