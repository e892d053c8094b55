"""Kinds of raw items of the probe `stacks`, and the moments of a look that they are of."""

from __future__ import annotations

STACK, THREADS, SOURCE, UNREAD, OUTPUT = "stack", "threads", "source", "unread", "output"
BEFORE, AFTER = "before", "after"
