"""Detects quantities printed next to their limit, in any program's wording."""

from __future__ import annotations

import re

_QUANTITY = re.compile(
    r"(?<![\w.])(\d{1,15}(?:\.\d{1,6})?) ?((?:[KMGT]i?)?B(?:ytes)?|bytes|[KMGT]|%|s|ms|W|°?C)?(?![\w.]*\w)"
)
_LIMIT = re.compile(
    r"\b(?:total|capacity|limit|max(?:imum)?|of|out of|free|available|allocated|reserved|used|size|quota)\b", re.I
)
_RATIO = 0.9


def is_near_a_limit(text: str) -> bool:
    """Whether a line gives a quantity and its limit that are nearly equal, or says that nothing is left."""
    if not _LIMIT.search(text):
        return False
    by_unit: dict[str, list[float]] = {}
    for value, unit in _QUANTITY.findall(text[:600]):
        by_unit.setdefault(unit.lower(), []).append(float(value))
    for unit, values in by_unit.items():
        if not unit or len(values) < 2:
            continue
        most = max(values)
        if 0 in values or any(_RATIO * most <= value < most for value in values):
            return True
    return False
