"""JSON from the user. What is not of the kind that it has to be counts as not told."""

from __future__ import annotations

import json
import math
from typing import Any

LARGEST = (1 << 63) - 1
"""That a column of the store can hold."""


def read_json(data: bytes | str) -> Any:
    """What a text holds; None if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_object(data: bytes | str) -> dict[str, Any]:
    """The object in a text; an empty one for anything else."""
    found = read_json(data)
    return found if isinstance(found, dict) else {}


def whole(value: object, most: int = (1 << 31) - 1, least: int = 0) -> int | None:
    """A whole number within bounds."""
    return value if type(value) is int and least <= value <= most else None


def finite(value: object) -> float | None:
    """A number that is finite."""
    if type(value) not in (int, float) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
