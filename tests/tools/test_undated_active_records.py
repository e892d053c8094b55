"""Undated records of active work: who has nothing pending while all others wait (constructed)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from constructed_records import NOW_NS, dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Diagnosis

RANKS = range(8)


def judged(directory: Path, idle: set[int]) -> Diagnosis:
    """What is said of 8 dumps, of which those of `idle` hold nothing and the others one all_reduce."""
    for rank in RANKS:
        pending = entry(
            record_id=40 + rank % 3, collective_seq_id=9, op_id=9, state="started", retired=False, duration_ms=None,
            time_discovered_started_ns=NOW_NS + 1, time_discovered_completed_ns=None,
            frames=[{"name": "step", "filename": "/srv/job/train.py", "line": 41}],
        )  # fmt: skip
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(RANKS))}}
        content = dump(*([] if rank in idle else [pending]), pg_config=groups, pg_status={})
        (directory / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    return investigate([str(directory)]).diagnose()


def test_ranks_with_nothing_pending_are_suspects_if_the_job_hung(tmp_path: Path) -> None:
    (suspect,) = judged(tmp_path, {2, 5}).suspects
    assert (suspect.ranks, suspect.certainty) == ([2, 5], Certainty.LIKELY)
    assert "was not hung" in suspect.unless


@pytest.mark.parametrize("idle", [set(), {0, 1, 2, 3}], ids=["all are in it", "as many have nothing pending"])
def test_where_nobody_is_the_exception_nobody_is_suspected(tmp_path: Path, idle: set[int]) -> None:
    assert judged(tmp_path, idle).suspects == []
