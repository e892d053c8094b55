"""Compact notation for many ranks: `0-7`, `0-448 step 64`, `0-511 except 157`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import gcd

_MOST_EXCEPTIONS = 4


def rank_spans(ranks: Iterable[int], most: int = 6) -> str:
    """Ranks as spans; beyond `most` spans, only the first ones and the total number of ranks."""
    ordered = sorted(set(ranks))
    step = gcd(*(after - ordered[0] for after in ordered[1:]))
    if len(ordered) > 2 or step == 1:
        full = range(ordered[0], ordered[-1] + 1, step)
        # A hostile number may make the range arbitrarily long.
        absent = sorted(set(full) - set(ordered)) if len(full) - len(ordered) <= _MOST_EXCEPTIONS else []
        if len(full) == len(ordered) or (absent and len(ordered) > 2 * len(absent) + _MOST_EXCEPTIONS):
            text = f"{ordered[0]}-{ordered[-1]}" + (f" step {step}" if step > 1 else "")
            return text + (f" except {', '.join(map(str, absent))}" if absent else "")
    spans = runs(ordered)
    shown = ", ".join(spans[:most])
    return shown if len(spans) <= most else f"{shown}, … ({len(ordered)} in all)"


def runs(numbers: Iterable[int]) -> list[str]:
    """Numbers in order, with consecutive ones merged: `0-3`, `7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in spans]


def step_of(ranks: Iterable[int]) -> int | None:
    """The distance between neighbouring ranks, if it is constant; else None."""
    ordered = sorted(set(ranks))
    steps = {after - before for before, after in pairwise(ordered)}
    return steps.pop() if len(steps) == 1 else None
