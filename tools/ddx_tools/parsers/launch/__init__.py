"""Parsers of how a job was started: environments, scripts, settings."""
