"""Shared by all evaluation commands: options and the table printer. Light to import."""
