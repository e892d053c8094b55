"""Kinds of raw items of the probe `stacks`, and the moments of a look that they are of."""

from __future__ import annotations

STACK, THREADS, SOURCE, UNREAD, OUTPUT = "stack", "threads", "source", "unread", "output"
NATIVE = "native"
"""The dump of a rank with native frames, which tell a wait for its GPU from work."""
BEFORE, AFTER = "before", "after"
