"""Records of a job that reduces in small groups and then over all ranks (constructed)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from constructed_records import as_pickle, dump, entry

from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Diagnosis, Verdict

S = 1_000_000_000
NOON = 1_760_000_000 * S
RANKS = range(8)
ALL = ("0", "default_pg")
Call = tuple[tuple[str, str], bool]
"""Group and whether it has finished."""


def small(rank: int) -> tuple[str, str]:
    """The group of a rank's half: 0-3 or 4-7."""
    return (str(1 + rank // 4), "mesh_tp")


def record(calls: Sequence[Call], last_ns: int = NOON, pause_ns: int = 0) -> bytes:
    """A record of these calls, one a tenth of a second, of which the last was made then, after a pause."""
    numbers: dict[str, int] = {}
    entries = []
    for place, (group, done) in enumerate(calls):
        first = not done and (place == 0 or calls[place - 1][1])
        called = last_ns - (len(calls) - 1 - place) * S // 10 - (pause_ns if place < len(calls) - 1 else 0)
        seq = numbers[group[0]] = numbers.get(group[0], 0) + 1
        entries.append(
            entry(
                record_id=place,
                process_group=group,
                pg_id=int(group[0]),
                collective_seq_id=seq,
                op_id=seq,
                time_created_ns=called,
                time_discovered_started_ns=called + S // 1000 if done or first else None,
                time_discovered_completed_ns=called + S // 100 if done else None,
                state="completed" if done else "started" if first else "scheduled",
                duration_ms=1.0 if done else None,
                retired=done,
            )
        )
    half = calls[0][0][0]
    groups = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str([*RANKS])},
        half: {"name": half, "desc": "mesh_tp", "ranks": "[0, 1, 2, 3]" if half == "1" else "[4, 5, 6, 7]"},
    }
    return as_pickle(dump(*entries, pg_config=groups, pg_status={}))


def rounds(rank: int, count: int) -> list[Call]:
    return [(small(rank), True), (ALL, True)] * count


def judged(folder: Path, records: Mapping[int, bytes], written_ns: Mapping[int, int] | None = None) -> Diagnosis:
    for rank, data in records.items():
        file = folder / f"nccl_trace_rank_{rank}"
        file.write_bytes(data)
        if written_ns:
            os.utime(file, ns=(written_ns[rank], written_ns[rank]))
    return investigate([str(folder)]).diagnose()


def swapped(odd: set[int], lost: int | None = None) -> dict[int, bytes]:
    """After three rounds the odd ones call the operation of all first, and the others their group's."""
    orders = {
        rank: [(ALL, False), (small(rank), False)] if rank in odd else [(small(rank), False), (ALL, False)]
        for rank in RANKS
    }
    return {rank: record([*rounds(rank, 3), *orders[rank]]) for rank in RANKS if rank != lost}


def test_ranks_of_two_groups_that_call_in_another_order_are_the_odd_ones(tmp_path: Path) -> None:
    assert judged(tmp_path, swapped({1, 6})).culprits.ranks == [1, 6]


def test_and_where_one_left_no_record(tmp_path: Path) -> None:
    assert judged(tmp_path, swapped({1, 6}, lost=7)).culprits.ranks == [1, 6]


def test_where_as_many_call_in_either_order_nobody_is_odd(tmp_path: Path) -> None:
    assert judged(tmp_path, swapped({0, 1, 4, 5})).culprits.ranks == []


def test_a_rank_that_makes_a_step_more_than_all_others_may_be_at_fault(tmp_path: Path) -> None:
    records = {rank: record(rounds(rank, 3)) for rank in RANKS}
    found = judged(tmp_path, records | {5: record([*rounds(5, 3), (small(5), False)])})
    (suspect,) = found.suspects
    assert (suspect.ranks, suspect.certainty, found.verdict) == ([5], Certainty.LIKELY, Verdict.UNDECIDED)


def test_two_that_are_first_in_a_call_are_no_trouble(tmp_path: Path) -> None:
    records = {rank: record([*rounds(rank, 3), *([(small(rank), False)] if rank in (2, 5) else [])]) for rank in RANKS}
    assert judged(tmp_path, records).suspects == []


def stood(idle_s: float) -> tuple[dict[int, bytes], dict[int, int]]:
    """Rank 0 has made a call by itself just now, 3 wait in the next one of all, and four have not come yet."""
    records = {rank: record([*rounds(rank, 3), *([(ALL, False)] if rank in (1, 2, 3) else [])]) for rank in RANKS}
    late = NOON + int(idle_s * S)
    records[0] = record([*rounds(0, 3), (("9", "alone"), True)], last_ns=late, pause_ns=int(idle_s * S) - S // 10)
    return records, dict.fromkeys(RANKS, late + S // 10)


def test_files_that_were_written_with_a_fresh_one_tell_how_long_their_ranks_have_waited(tmp_path: Path) -> None:
    (tmp_path / "moving").mkdir()
    (tmp_path / "hung").mkdir()
    assert judged(tmp_path / "moving", *stood(1.0)).suspects == []
    hung = judged(tmp_path / "hung", *stood(50.0))
    assert hung.verdict is not Verdict.HEALTHY and hung.victims.ranks == [1, 2, 3]
