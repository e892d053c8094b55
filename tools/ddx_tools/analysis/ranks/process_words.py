"""One-line descriptions of a process and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def process_words(row: Mapping[str, Any]) -> str:
    """A row of `ranks` as one line: `pid 14692 state T python train.py`."""
    return f"pid {row['pid']} state {row['state'] or '?'} {(row['command'] or '')[:120]}".rstrip()


def environment_words(row: Mapping[str, Any]) -> str:
    """The rank variables in a row of `ranks` as one line: `pid 14692 RANK=3 WORLD_SIZE=4`."""
    return f"pid {row['pid']} RANK={row['rank']} WORLD_SIZE={row['world_size']}"
