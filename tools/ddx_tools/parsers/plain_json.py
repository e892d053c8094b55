"""Reads JSON from the user. A value of the wrong type counts as missing."""

from __future__ import annotations

import json
import math
from typing import Any

LARGEST = (1 << 63) - 1
"""The largest number that a column of the store can hold."""


def read_json(data: bytes | str) -> Any:
    """Return the JSON value in a text; None if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_object(data: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one for anything else."""
    return dict_of(read_json(data))


def dict_of(value: object) -> dict[str, Any]:
    """Return a value if it is a JSON object; else an empty one."""
    return value if isinstance(value, dict) else {}


def dicts_of(value: object, most: int) -> list[dict[str, Any]]:
    """Return the objects among the first `most` items of a JSON list; none for anything else."""
    return [one for one in (value if isinstance(value, list) else ())[:most] if isinstance(one, dict)]


def text_of(value: object, most: int = 1_000) -> str:
    """Return a text, cut to a number of characters, or a whole number as text; empty for anything else.

    `str` of a deeply nested list would exceed the recursion limit.
    """
    return str(value)[:most] if isinstance(value, str) or type(value) is int else ""


def whole(value: object, most: int = (1 << 31) - 1, least: int = 0) -> int | None:
    """Return a value if it is a whole number within bounds; else None."""
    return value if type(value) is int and least <= value <= most else None


def finite(value: object) -> float | None:
    """Return a value as a float if it is a finite number; else None."""
    if type(value) not in (int, float) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
