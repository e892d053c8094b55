"""Which files are traces of a profiler, by their first bytes."""

from __future__ import annotations


def looks_like_trace(head: bytes) -> bool:
    """Whether a file that begins like this is a profiler's trace, and none that ddx made of something else."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{":
        kineto = b'"schemaVersion"' in start and b'"deviceProperties"' in start
        return kineto or (b'"traceEvents"' in start and b'"made_by"' not in start)
    return start[:1] == b"[" and b'"ph"' in start and b'"ts"' in start
