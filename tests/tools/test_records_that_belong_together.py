"""Records of another moment, day, attempt or rank among those of a job: they show neither health nor a culprit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Verdict

S = 1_000_000_000
NOON = 1_760_000_000 * S
DAY = 86_400 * S
RANKS = range(4)


def record(
    calls: int,
    *,
    begun_ns: int,
    stands: bool = False,
    first: int = 1,
    members: range = RANKS,
    timed: bool = True,
    ends_known: bool = True,
    step_s: int = 1,
    op: str = "all_reduce",
    last_op: str | None = None,
    size: int = 32,
    enqueued: int | None = None,
    completed: int | None = None,
    top: Mapping[str, Any] | None = None,
) -> bytes:
    """A record of one collective per step; in the last one the rank stands, or has finished it."""
    entries = []
    for seq in range(first, calls + 1):
        called, done = begun_ns + seq * step_s * S, not (stands and seq == calls)
        entries.append(
            entry(
                record_id=seq - 1,
                collective_seq_id=seq,
                op_id=seq,
                profiling_name=f"nccl:{last_op or op if seq == calls else op}",
                input_sizes=[[size]],
                output_sizes=[[size]],
                time_created_ns=called if timed else None,
                time_discovered_started_ns=called + 1_000_000 if timed and ends_known else None,
                time_discovered_completed_ns=called + 2_000_000 if done and timed and ends_known else None,
                state="completed" if done else "started",
                retired=done,
            )
        )
    status = {
        "last_enqueued_collective": calls if enqueued is None else enqueued,
        "last_started_collective": calls,
        "last_completed_collective": calls - stands if completed is None else completed,
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*members])}}
    return as_pickle(dump(*entries, pg_config=groups, pg_status={"0": status}, **(top or {})))


def judged(folder: Path, records: Mapping[int, bytes]) -> Diagnosis:
    for rank, data in records.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return investigate([str(folder)]).diagnose()


def peers(calls: int = 5, *, first: int = 1, stand: bool = False, ends_known: bool = True) -> dict[int, bytes]:
    return {
        rank: record(calls, begun_ns=NOON + rank * 1_000, stands=stand, first=first, ends_known=ends_known)
        for rank in RANKS
    }


def reasons(found: Diagnosis) -> list[str]:
    return [gap.what for gap in found.missing]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(peers(), id="five calls"),
        pytest.param(peers(2), id="two calls"),
        pytest.param(peers(ends_known=False), id="without the times of ends"),
        pytest.param({**peers(), 1: record(5, begun_ns=NOON - S)}, id="clock a second off"),
        pytest.param({**peers(50, first=46), 1: record(50, begun_ns=NOON, first=47)}, id="rings of two sizes"),
    ],
)
def test_records_that_end_together_are_healthy(tmp_path: Path, records: Mapping[int, bytes]) -> None:
    found = judged(tmp_path, records)
    assert found.verdict is Verdict.HEALTHY and not found.missing


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


EARLIER = NOON - 60 * S


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ({**peers(), 1: record(5, begun_ns=NOON, stands=True)}, "rank 1 had not finished"),
        ({**peers(stand=True), 1: record(5, begun_ns=NOON)}, "ranks 0, 2-3 had not finished"),
        ({**peers(), 1: record(5, begun_ns=NOON + 5 * S)}, "rank 1 are 5 s apart"),
        ({**peers(), 1: record(5, begun_ns=NOON + 590 * S)}, "rank 1 are 590 s apart"),
        ({**peers(), 1: record(5, begun_ns=EARLIER)}, "rank 1 are 60 s apart"),
        ({**peers(stand=True), 1: record(5, begun_ns=EARLIER)}, "rank 1 are 60 s apart"),
        ({**peers(ends_known=False), 1: record(5, begun_ns=EARLIER, ends_known=False)}, "rank 1 are 60 s apart"),
        ({**peers(), 1: record(5, begun_ns=NOON, members=range(2))}, "list ranks 0-1 as all members"),
        ({**peers(1), 1: peers(1)[0]}, "ranks 0-1 are copies"),
        ({**peers(2), 1: peers(2)[0]}, "ranks 0-1 are copies"),
        ({rank: record(5, begun_ns=NOON + rank, enqueued=9) for rank in RANKS}, "called collective 9 of default_pg"),
        ({rank: record(5, begun_ns=NOON + rank, enqueued=9, completed=9) for rank in RANKS}, "only the end of 5"),
        ({**peers(), 1: record(5, begun_ns=NOON + 1, completed=4)}, "rank 1 called collective 5"),
        (dict.fromkeys(RANKS, record(5, begun_ns=NOON, timed=False)), "no time in those of ranks 0-3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_why_records_show_no_health_is_said(tmp_path: Path, records: Mapping[int, bytes], why: str) -> None:
    found = judged(tmp_path, records)
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks
    assert any(why in reason for reason in reasons(found)), reasons(found)


@pytest.mark.parametrize("calls", [3, 5])
def test_a_record_of_another_day_accuses_nobody(tmp_path: Path, calls: int) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: record(calls, begun_ns=NOON - DAY)})
    assert found.verdict is not Verdict.DIAGNOSED
    assert not found.culprits.ranks


def test_a_rank_of_the_same_moment_that_stays_away_is_named(tmp_path: Path) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: record(4, begun_ns=NOON)})
    assert found.verdict is Verdict.UNDECIDED, "records do not show what the rank does instead"
    assert [suspect.ranks for suspect in found.suspects] == [[1]]


STANDING = peers(50, first=46, stand=True)


@pytest.mark.parametrize(
    "of_rank_1",
    [
        pytest.param(record(3, begun_ns=NOON - DAY, stands=True), id="stands in an earlier call"),
        pytest.param(record(3, begun_ns=NOON - DAY), id="finished an earlier call"),
        pytest.param(record(49, begun_ns=NOON - DAY, first=46), id="the same numbers"),
    ],
)
def test_a_record_of_another_day_is_left_out_and_that_is_said(tmp_path: Path, of_rank_1: bytes) -> None:
    found = judged(tmp_path, {**STANDING, 1: of_rank_1})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks
    assert any("flight record of rank 1 was left out" in reason for reason in reasons(found))
    assert "only a record of another run" in found.headline and "no report" not in found.headline
    assert [(one.ranks, one.certainty) for one in found.suspects] == [([1], Certainty.LIKELY)]


def test_a_record_of_the_same_hour_without_a_shared_number_is_compared(tmp_path: Path) -> None:
    found = judged(tmp_path, {**STANDING, 1: record(3, begun_ns=NOON, stands=True)})
    assert not reasons(found)
    assert [one.ranks for one in found.suspects] == [[1]]


OTHER = "broadcast"


@pytest.mark.parametrize("apart_s", [-90, -600, -3_000, -7_200, 600, 7_200])
def test_a_record_of_other_calls_at_another_time_is_left_out(tmp_path: Path, apart_s: int) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: record(5, begun_ns=NOON + apart_s * S, stands=True, op=OTHER)})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks
    way = "before" if apart_s < 0 else "after"
    assert any(f"rank 1 was left out: from another time, {abs(apart_s)} s {way}" in one for one in reasons(found))


@pytest.mark.parametrize(
    "of_rank_1",
    [
        pytest.param(record(5, begun_ns=NOON - 3_600 * S, stands=True, size=64), id="other sizes"),
        pytest.param(record(5, begun_ns=NOON - 3_600 * S, stands=True, last_op=OTHER, step_s=20), id="another pace"),
        pytest.param(record(1, begun_ns=NOON - 3_600 * S, stands=True, op=OTHER), id="nothing finished"),
    ],
)
def test_a_record_that_no_wrong_clock_explains_is_left_out(tmp_path: Path, of_rank_1: bytes) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: of_rank_1})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks
    assert any("rank 1 was left out" in reason for reason in reasons(found))


@pytest.mark.parametrize(
    ("calls", "of_rank_1"),
    [
        pytest.param(5, {"last_op": OTHER}, id="one moment"),
        pytest.param(5, {"op": OTHER}, id="one moment, other calls from the start"),
        pytest.param(5, {"last_op": OTHER, "begun_ns": NOON - 7_200 * S}, id="a clock two hours slow"),
        pytest.param(5, {"last_op": OTHER, "begun_ns": NOON + 1_234 * S}, id="a clock 20 minutes fast"),
        pytest.param(1, {"op": OTHER, "begun_ns": NOON + 300 * S}, id="the first call, five minutes late"),
    ],
)
def test_a_record_of_the_same_run_is_compared(tmp_path: Path, calls: int, of_rank_1: Mapping[str, Any]) -> None:
    one = record(calls, **{"begun_ns": NOON, "stands": True, **of_rank_1})
    found = judged(tmp_path, {**peers(calls, stand=True), 1: one})
    assert found.verdict is Verdict.DIAGNOSED and found.culprits.ranks == [1]
    assert not any("left out" in reason for reason in reasons(found))


# --- members of the default group


def of_members(members: range, op: str = "all_reduce") -> bytes:
    return record(5, begun_ns=NOON + len(members), stands=True, members=members, op=op)


def test_a_record_of_a_job_of_another_size_is_left_out(tmp_path: Path) -> None:
    found = judged(tmp_path, {**peers(stand=True), 1: of_members(range(8), OTHER)})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks
    assert any("rank 1 was left out" in one and "list ranks 0-7 as all members" in one for one in reasons(found))


def test_records_of_two_jobs_decide_nothing_if_neither_has_more(tmp_path: Path) -> None:
    other = {rank: of_members(range(8), OTHER) for rank in (2, 3)}
    found = judged(tmp_path, {**{rank: peers(stand=True)[rank] for rank in (0, 1)}, **other})
    assert found.verdict is Verdict.UNDECIDED and not found.culprits.ranks and not found.suspects
    assert any("ranks 0-1 list ranks 0-3; those of ranks 2-3 list ranks 0-7" in one for one in reasons(found))


# --- versions


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ({"comm_lib_version": "2.18.1"}, ["nccl library 2.27.3 (ranks 0, 2-3) and 2.18.1 (rank 1)"]),
        ({"version": "2.4"}, ["nccl format 2.10 (ranks 0, 2-3) and 2.4 (rank 1)"]),
        ({}, []),
    ],
)
def test_a_record_of_another_version_is_mentioned_and_compared(
    tmp_path: Path, top: Mapping[str, Any], told: list[str]
) -> None:
    one = record(5, begun_ns=NOON, stands=True, last_op=OTHER, top=top)
    found = judged(tmp_path, {**peers(stand=True), 1: one})
    assert found.verdict is Verdict.DIAGNOSED and found.culprits.ranks == [1]
    assert [reason for reason in reasons(found) if "versions" in reason] == [
        f"The flight records name different versions: {each}" for each in told
    ]
