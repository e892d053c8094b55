"""A process and its variables in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def process_words(row: Mapping[str, Any]) -> str:
    """`pid 14692 state T python train.py`: a row of `ranks`."""
    return f"pid {row['pid']} state {row['state'] or '?'} {(row['command'] or '')[:120]}".rstrip()


def environment_words(row: Mapping[str, Any]) -> str:
    """`pid 14692 RANK=3 WORLD_SIZE=4`: a row of `ranks`."""
    return f"pid {row['pid']} RANK={row['rank']} WORLD_SIZE={row['world_size']}"
