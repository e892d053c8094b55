"""Undated records of active work: who has nothing pending, or old work, while all others wait (constructed)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
from constructed_records import dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Diagnosis

RANKS = range(8)
NONE: Mapping[int, int] = {}


def judged(directory: Path, idle: set[int], earlier: Mapping[int, int] = NONE) -> Diagnosis:
    """What is said of 8 dumps, of which those of `idle` hold nothing and the others one all_reduce.

    `earlier`: ranks that have another all_reduce unfinished, and this many before it.
    """
    for rank in RANKS:
        numbers = [] if rank in idle else [9 - earlier[rank], 8] if rank in earlier else [9]
        pending = [
            entry(
                record_id=40 + rank % 3 + number, collective_seq_id=number, op_id=number, state="scheduled",
                retired=False, duration_ms=None, time_discovered_started_ns=None,
                time_discovered_completed_ns=None,
                frames=[{"name": "step", "filename": "/srv/job/train.py", "line": 41}],
            )
            for number in numbers
        ]  # fmt: skip
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(RANKS))}}
        content = dump(*pending, pg_config=groups, pg_status={})
        (directory / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    return investigate([str(directory)]).diagnose()


def test_ranks_with_nothing_pending_are_suspects_if_the_job_hung(tmp_path: Path) -> None:
    (suspect,) = judged(tmp_path, {2, 5}).suspects
    assert (suspect.ranks, suspect.certainty) == ([2, 5], Certainty.LIKELY)
    assert "was not hung" in suspect.unless


@pytest.mark.parametrize("idle", [set(), {0, 1, 2, 3}], ids=["all are in it", "as many have nothing pending"])
def test_where_nobody_is_the_exception_nobody_is_suspected(tmp_path: Path, idle: set[int]) -> None:
    assert judged(tmp_path, idle).suspects == []


def test_who_has_not_finished_what_all_peers_have_is_where_a_device_stopped(tmp_path: Path) -> None:
    (suspect,) = judged(tmp_path, set(), {2: 3, 5: 3}).suspects
    assert (suspect.ranks, suspect.certainty) == ([2, 5], Certainty.LIKELY)


def test_ranks_that_are_apart_everywhere_were_looked_at_one_after_the_other(tmp_path: Path) -> None:
    assert judged(tmp_path, set(), {rank: 2 + rank % 3 for rank in range(5)}).suspects == []
