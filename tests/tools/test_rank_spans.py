"""Ranks in few characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.model.rank_spans import rank_spans, step_of


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (range(512), "0-511"),
        ([7], "7"),
        ([0, 1], "0-1"),
        ([0, 8], "0, 8"),
        (range(0, 512, 64), "0-448 step 64"),
        (set(range(512)) - {157, 471}, "0-511 except 157, 471"),
        (set(range(3, 512, 4)) - {471}, "3-511 step 4 except 471"),
        ([0, 1, 2, 5, 6, 9], "0-2, 5-6, 9"),
        ([3, 1, 2, 1], "1-3"),
        ([], ""),
        ([0, 2_000_000_000], "0, 2000000000"),
    ],
)
def test_ranks_are_drawn_together(ranks: list[int], text: str) -> None:
    assert rank_spans(ranks) == text


@given(ranks=st.sets(st.integers(0, 2**31 - 1) | st.integers(0, 64), min_size=1), most=st.integers(1, 8))
def test_whatever_the_ranks_the_text_is_short_and_true(ranks: set[int], most: int) -> None:
    text = rank_spans(ranks, most)
    assert len(text) < 24 * most + 80
    if "…" in text:
        assert f"({len(ranks)} in all)" in text
    else:
        assert told(text) == ranks


def told(text: str) -> set[int]:
    """The ranks that a text stands for, read back."""
    spans, _, exceptions = text.partition(" except ")
    found: set[int] = set()
    for span in spans.split(", "):
        first, last, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?: step (\d+))?", span).groups()  # type: ignore[union-attr]
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found - {int(each) for each in exceptions.split(", ") if each}


@pytest.mark.parametrize(("ranks", "step"), [([0, 8, 16], 8), ([0, 1, 3], None), ([4], None), ([4, 6], 2)])
def test_the_distance_between_members(ranks: list[int], step: int | None) -> None:
    assert step_of(ranks) == step
