"""Of dumps that several attempts of a job left, one attempt is chosen, and the rest is named."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from packed_records import DUMPS, RECORDS, captured, rows_of, tar_gz

from ddx_tools.analysis.collectives.records.attempts import chosen_attempt

S = 1_000_000_000
NOON = 1_795_000_000 * S


def dump(rank: int, attempt: str | None, at_s: float | None, **other: Any) -> dict[str, Any]:
    """A row of fr_dumps (constructed)."""
    row = {
        "host": None,
        "rank": rank,
        "source": f"{attempt}:{rank}",
        "origin": "file",
        "attempt": attempt,
        "taken_ns": None,
        "latest_ns": None if at_s is None else NOON + int(at_s * S) + rank,
        "last_call_ns": None if at_s is None else NOON + int(at_s * S) + rank,
        "entries": 100,
        "last_record": 99,
        "backend": "nccl",
        "with_frames": True,
        "world_size": None,
    }
    assert other.keys() <= row.keys()
    return row | other


def job(ranks: Iterable[int], attempt: str, at_s: float | None, **other: Any) -> list[dict[str, Any]]:
    return [dump(rank, attempt, at_s, **other) for rank in ranks]


def chosen(*dumps: dict[str, Any]) -> tuple[dict[str, list[int]], list[str]]:
    """The ranks that were chosen of each attempt, and what is said of the rest."""
    choice = chosen_attempt(dumps)
    ranks: dict[str, list[int]] = {}
    for row in choice.dumps:
        ranks.setdefault(row["attempt"], []).append(row["rank"])
    return ranks, choice.left_out


def test_one_set_is_all_there_is() -> None:
    assert chosen(*job(range(4), "d/rank_*", 0)) == ({"d/rank_*": [0, 1, 2, 3]}, [])
    assert chosen_attempt([]).dumps == []


def test_the_newest_of_several_attempts_counts() -> None:
    ranks, left_out = chosen(
        *job(range(4), "d/attempt_0/rank_*", 0),
        *job(range(4), "d/attempt_1/rank_*", 900),
        *job(range(3), "d/attempt_2/rank_*", 2000),
    )
    assert ranks == {"d/attempt_2/rank_*": [0, 1, 2]}, "rank 3 of another attempt is not its rank 3"
    assert len(left_out) == 2
    assert "d/attempt_1/rank_*: 4 flight records (ranks 0-3) were left out: their name says attempt 1" in left_out[0]


def test_attempts_are_told_by_their_numbers_even_where_ranks_differ() -> None:
    ranks, _ = chosen(*job([0, 1], "d/attempt_1/rank_*", 60), *job([2, 3], "d/attempt_0/rank_*", 55))
    assert ranks == {"d/attempt_1/rank_*": [0, 1]}
    ranks, _ = chosen(
        *job([0, 1], "node0/restart-1/rank_*", 60),
        *job([2, 3], "node1/restart-1/rank_*", 61),
        *job([0, 1], "node0/restart-0/rank_*", 0),
        *job([2, 3], "node1/restart-0/rank_*", 1),
    )
    assert ranks == {"node0/restart-1/rank_*": [0, 1], "node1/restart-1/rank_*": [2, 3]}


def test_directories_of_several_hosts_are_one_attempt() -> None:
    ranks, left_out = chosen(*job([0, 1], "node0/rank_*", 0), *job([2, 3], "node1/rank_*", 30))
    assert ranks == {"node0/rank_*": [0, 1], "node1/rank_*": [2, 3]} and left_out == []


def test_a_host_that_stood_still_while_the_others_waited_is_of_their_attempt() -> None:
    """What waits notes its own time when the record is taken, after an hour; nobody has called anything since."""
    waiting = job([0, 1], "node0/rank_*", 3600, last_call_ns=NOON + 3 * S)
    stalled = job([2, 3], "node1/rank_*", 0)
    ranks, left_out = chosen(*waiting, *stalled)
    assert ranks == {"node0/rank_*": [0, 1], "node1/rank_*": [2, 3]} and left_out == []


def test_other_ranks_of_another_day_are_not() -> None:
    ranks, left_out = chosen(*job([0, 1], "node0/rank_*", 0), *job([2, 3], "node1/rank_*", 86_400))
    assert ranks == {"node1/rank_*": [2, 3]}
    assert left_out == [
        "node0/rank_*: 2 flight records (ranks 0-1) were left out: 86400 s older than node1/rank_*. "
        "To read them, pass only these files."
    ]


def test_jobs_of_different_sizes_are_not_one() -> None:
    ranks, left_out = chosen(*job([0, 1], "a/rank_*", 10, world_size=2), *job([2, 3], "b/rank_*", 0, world_size=4))
    assert ranks == {"a/rank_*": [0, 1]} and "the job size differs from" in left_out[0]


def test_records_without_any_time_join_their_job() -> None:
    """A rank that has nothing active writes an empty list: that says much, and no time."""
    ranks, _ = chosen(*job([0, 1], "node0/rank_*", 0), *job([2, 3], "node1/rank_*", None, entries=0))
    assert ranks == {"node0/rank_*": [0, 1], "node1/rank_*": [2, 3]}


def test_copies_of_an_attempt_are_taken_once() -> None:
    """The archive beside the directory that it was made of; JSON beside pickles."""
    ranks, left_out = chosen(
        *job(range(4), "d/rank_*", 0, with_frames=False), *job(range(4), "dumps.tar.gz!d/rank_*", 0)
    )
    assert ranks == {"dumps.tar.gz!d/rank_*": [0, 1, 2, 3]} and left_out == []
    ranks, left_out = chosen(*job(range(4), "d/rank_*", 0), *job([2, 3, 4], "e/rank_*", 0))
    assert ranks == {"d/rank_*": [0, 1], "e/rank_*": [2, 3, 4]} and left_out == []


def test_two_recorders_of_one_process_are_used_together() -> None:
    ranks, left_out = chosen(*job([0, 1], "nccl_rank_*", 0), *job([0, 1], "gloo_rank_*", 5, backend="gloo"))
    assert ranks == {"nccl_rank_*": [0, 1], "gloo_rank_*": [0, 1]} and left_out == []


def test_the_beginning_of_a_moment_does_not_replace_a_complete_one() -> None:
    """A periodic dumper was killed while it wrote; an attempt of its own, with few ranks, is another thing."""
    whole = job(range(8), "dump_0800/rank_*", 0)
    assert chosen(*whole, *job([0], "dump_0801/rank_*", 60))[0] == {"dump_0800/rank_*": list(range(8))}
    assert chosen(*whole, *job([0], "dump_0801/rank_*", 7200))[0] == {"dump_0801/rank_*": [0]}
    assert chosen(*whole, *job(range(7), "dump_0801/rank_*", 60))[0] == {"dump_0801/rank_*": list(range(7))}


def test_many_moments_are_told_in_few_lines() -> None:
    moments = [row for at in range(200) for row in job(range(4), f"d/{at:04}/rank_*", at * 60)]
    ranks, left_out = chosen(*moments)
    assert ranks == {"d/0199/rank_*": [0, 1, 2, 3]}
    assert len(left_out) == 11 and left_out[-1] == "189 more sets of flight records were left out"


# --- several dumps of one rank in one set


def test_of_several_moments_of_a_rank_the_last_counts() -> None:
    choice = chosen_attempt([*job(range(3), "run/rank-*", 0), *job(range(3), "run/rank-*", 300)])
    assert [row["latest_ns"] for row in choice.dumps] == [NOON + 300 * S + rank for rank in range(3)]
    assert choice.left_out == ["3 earlier flight records were left out: only the last of each rank counts"]


def test_a_rank_that_left_nothing_at_the_last_moment_is_not_taken_from_an_earlier_one() -> None:
    ranks, left_out = chosen(*job(range(4), "run/rank-*", 0), *job(range(3), "run/rank-*", 20))
    assert ranks == {"run/rank-*": [0, 1, 2]}
    assert left_out[0].endswith("None from the last moment exists for rank 3")


def test_who_raised_and_whose_peers_died_later_are_of_one_moment() -> None:
    """The labels of payloads/rank_agent.py: one rank saves twice within a second, the others once."""
    ranks, _ = chosen(
        dump(1, "run/rank-*", 0, taken_ns=NOON),
        dump(1, "run/rank-*", 0, taken_ns=NOON + S // 10),
        *(dump(rank, "run/rank-*", 0, taken_ns=NOON + at * S) for rank, at in ((0, -3), (2, 5), (3, 20))),
    )
    assert sorted(ranks["run/rank-*"]) == [0, 1, 2, 3]


def test_encodings_of_one_moment_stay_together() -> None:
    twins = [dump(0, "d/rank_*", 0), dump(0, "d/rank_*", 0, with_frames=False, source="json"), dump(1, "d/rank_*", 9)]
    assert chosen_attempt(twins).dumps == twins


# --- live looks


def test_what_live_ranks_gave_always_counts() -> None:
    live = [dump(rank, None, 0, origin="agent", taken_ns=NOON + look * S) for rank in range(2) for look in range(2)]
    asked = [dump(2, None, 0, origin="endpoint")]
    files = job(range(4), "/tmp/nccl_trace_rank_*", -50)
    choice = chosen_attempt([*live, *asked, *files])
    assert choice.dumps == [*live, *asked, *files] and choice.left_out == []


# --- whatever comes


ROWS = st.builds(
    dump,
    rank=st.integers(0, 5),
    attempt=st.sampled_from(["a/rank_*", "b/rank_*", "attempt_1/rank_*", "attempt_2/rank_*", None]),
    at_s=st.none() | st.sampled_from([0, 1, 30, 700, 100_000]),
    origin=st.sampled_from(["file", "agent", "exit"]),
    backend=st.sampled_from(["nccl", "gloo", None]),
    taken_ns=st.none() | st.just(NOON + 5 * S),
    entries=st.integers(0, 2),
    world_size=st.sampled_from([None, 4, 8]),
)


@given(st.lists(ROWS, max_size=25))
def test_never_are_two_numbered_attempts_mixed_and_never_is_everything_lost(rows: list[dict[str, Any]]) -> None:
    choice = chosen_attempt(rows)
    kept = [id(row) for row in choice.dumps]
    assert kept == [id(row) for row in rows if id(row) in kept], "in the order they were given"
    assert bool(rows) == bool(kept)
    of_files = [row for row in choice.dumps if row["origin"] not in ("agent", "endpoint") and row["attempt"]]
    numbered = {row["attempt"] for row in of_files if "attempt_" in row["attempt"]}
    assert len(numbered) < 2
    moments: dict[tuple[int, str | None], set[int]] = {}
    for row in of_files:
        if (time := row["taken_ns"] or row["latest_ns"]) is not None:
            moments.setdefault((row["rank"], row["backend"]), set()).add(time)
    assert all(len(times) == 1 for times in moments.values())


def test_rows_of_real_dumps_carry_what_the_choice_needs(tmp_path: Path) -> None:
    """The healthy job ran seconds before the other; they are told by their folders and times."""
    for case in ("no_sync-ok", "no_sync-fault"):
        for rank in range(4):
            (tmp_path / case).mkdir(exist_ok=True)
            shutil.copy(RECORDS / case / f"rank_{rank}.pkl", tmp_path / case)
    (tmp_path / "no_sync-fault.tar.gz").write_bytes(tar_gz(DUMPS))
    rows = rows_of(captured(tmp_path))["fr_dumps"]
    choice = chosen_attempt(rows)
    assert len(rows) == 12 and len(choice.dumps) == 4
    (case,) = {Path(row["attempt"]).parent.name for row in choice.dumps}
    newest = max(rows, key=lambda row: row["latest_ns"])
    assert case in newest["attempt"] and choice.left_out
    assert not any(f"/{case}" in line.split(" were left out")[0] for line in choice.left_out)
