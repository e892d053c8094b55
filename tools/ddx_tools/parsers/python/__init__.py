"""Parsers of Python output: tracebacks, stacks, sources."""
