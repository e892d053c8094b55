"""Parsers of job log lines."""
