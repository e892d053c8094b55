"""Parsers of texts about networks."""
