"""Who of two members called another operation, by what the other groups of the kind called (constructed)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from constructed_jobs import Job

from ddx_tools.model.diagnosis import Finding

PAIRS = ((0, 1), (2, 3), (4, 5))
"""The tensor-parallel groups."""
USUAL = ("all_gather", 8, 301)
"""Operation, elements and line of the call that the program makes under the number."""


def mismatch(
    last: Mapping[int, tuple[str, int, int]],
    *,
    before: Mapping[int, int] | None = None,
    op: str = "all_reduce",
    usual: tuple[str, int, int] = USUAL,
) -> Finding:
    """The finding about pairs that called `op` four times alike, and then `usual`, or `last` on some ranks.

    `before`: the line of the calls before, of some pairs by their first rank.
    """
    job = Job(6)
    for pair in PAIRS:
        key = job.group(f"tp{pair[0]}", pair, "mesh_tp")
        for rank in pair:
            for seq in range(1, 5):
                job.call(rank, key, seq, op, line=(before or {}).get(pair[0], 200))
            last_op, elements, line = last.get(rank, usual)
            job.call(rank, key, 5, last_op, sizes=((elements,),), line=line, done=rank > 1)
    (found,) = [each for each in job.findings() if each.code.endswith("_mismatch")]
    return found


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("reduce_scatter", 8, 322), "collective.operation_mismatch"),
        (("all_gather", 9, 301), "collective.shape_mismatch"),
    ],
)
def test_of_two_members_the_one_that_differs_from_the_other_groups_is_named(
    odd: int, call: tuple[str, int, int], code: str
) -> None:
    found = mismatch({odd: call})
    assert found.code == code
    assert found.ranks == [odd] and not found.attributes["tie"]


@pytest.mark.parametrize("odd", [0, 1])
def test_in_an_exchange_of_two_likewise(odd: int) -> None:
    found = mismatch({odd: ("all_to_all", 9, 88)}, op="all_to_all", usual=("all_to_all", 8, 88))
    assert found.code == "collective.shape_mismatch"
    assert found.ranks == [odd] and not found.attributes["tie"]


def test_groups_that_came_another_way_tell_nothing() -> None:
    """They are another stage of the pipeline, say."""
    found = mismatch({1: ("reduce_scatter", 8, 322)}, before={2: 201, 4: 201})
    assert found.ranks == [0, 1] and found.attributes["tie"]


def test_groups_that_differ_from_each_other_tell_nothing() -> None:
    others = dict.fromkeys((4, 5), ("reduce_scatter", 8, 322))
    found = mismatch({1: ("reduce_scatter", 8, 322), **others})
    assert found.ranks == [0, 1] and found.attributes["tie"]
