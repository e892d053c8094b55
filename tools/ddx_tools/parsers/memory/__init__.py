"""Parsers of torch's memory files."""
