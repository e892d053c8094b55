"""Renders results on a terminal; nothing else in ddx does."""
