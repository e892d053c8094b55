"""Parsers of profiler traces: bytes in, intervals out."""
