"""Records of another moment, day, attempt or rank among those of a job: they show neither health nor a culprit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

S = 1_000_000_000
NOON = 1_760_000_000 * S
DAY = 86_400 * S
RANKS = range(4)


def record(calls: int, *, begun_ns: int, stands: bool = False) -> bytes:
    """A record of one collective a second; in the last one the rank stands, or has finished it."""
    entries = []
    for seq in range(1, calls + 1):
        called, done = begun_ns + seq * S, not (stands and seq == calls)
        entries.append(
            entry(
                record_id=seq - 1,
                collective_seq_id=seq,
                op_id=seq,
                time_created_ns=called,
                time_discovered_started_ns=called + 1_000_000,
                time_discovered_completed_ns=called + 2_000_000 if done else None,
                state="completed" if done else "started",
                retired=done,
            )
        )
    status = {
        "last_enqueued_collective": calls,
        "last_started_collective": calls,
        "last_completed_collective": calls - stands,
    }
    members = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*RANKS])}}
    return as_pickle(dump(*entries, pg_config=members, pg_status={"0": status}))


def judged(folder: Path, records: Mapping[int, bytes]) -> Diagnosis:
    for rank, data in records.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return investigate([str(folder)]).diagnose()


def peers(calls: int = 5, *, stand: bool = False) -> dict[int, bytes]:
    return {rank: record(calls, begun_ns=NOON + rank * 1_000, stands=stand) for rank in RANKS}


def test_records_that_end_together_are_healthy(tmp_path: Path) -> None:
    assert judged(tmp_path, peers()).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("of_rank_1", "stand"),
    [
        pytest.param(record(2, begun_ns=NOON), True, id="ends three collectives earlier"),
        pytest.param(record(2, begun_ns=NOON), False, id="ends earlier, and peers have finished"),
        pytest.param(record(5, begun_ns=NOON - DAY), False, id="of another day"),
        pytest.param(record(5, begun_ns=NOON + 1_800 * S), False, id="of the next attempt"),
        pytest.param(record(5, begun_ns=NOON), False, id="copied from rank 0"),
    ],
)
def test_a_record_that_does_not_belong_shows_no_health(tmp_path: Path, of_rank_1: bytes, *, stand: bool) -> None:
    found = judged(tmp_path, {**peers(stand=stand), 1: of_rank_1})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks


@pytest.mark.parametrize("calls", [3, 5])
def test_a_record_of_another_day_accuses_nobody(tmp_path: Path, calls: int) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: record(calls, begun_ns=NOON - DAY)})
    assert found.verdict is not Verdict.DIAGNOSED
    assert not found.culprits.ranks


def test_a_rank_of_the_same_moment_that_stays_away_is_named(tmp_path: Path) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: record(4, begun_ns=NOON)})
    assert found.verdict is Verdict.UNDECIDED, "records do not show what the rank does instead"
    assert [suspect.ranks for suspect in found.suspects] == [[1]]
