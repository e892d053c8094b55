"""Which files say something of memory, by their first bytes."""

from __future__ import annotations


def looks_like_snapshot(head: bytes) -> bool:
    """Whether a pickle that begins like this is a memory snapshot: a dictionary whose first key is `segments`."""
    return head[:1] == b"\x80" and b"segments" in head[:64]


def looks_like_report(head: bytes) -> bool:
    """Whether a file that begins like this was written by `ddx_tools.payloads.memory_report`."""
    return head.startswith(b'{"ddx_memory_report":')
