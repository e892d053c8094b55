"""Traces of a profiler: bytes in, intervals out."""
