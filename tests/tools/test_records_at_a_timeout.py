"""What a watchdog gave up on, when records were written, and which rank left the path that all others follow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from constructed_records import as_pickle, dump, entry

from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Verdict

S = 1_000_000_000
NOON = 1_760_000_000 * S
TIMEOUT_S = 600


def ranks_of(diagnosis: Diagnosis) -> list[int]:
    return sorted({rank for suspect in diagnosis.suspects for rank in suspect.ranks})


def collective(
    seq: int, called_ns: int, *, done_ns: int | None, retired: bool | None = None, backend: str = "nccl"
) -> dict[str, Any]:
    done = done_ns is not None
    return entry(
        record_id=seq,
        collective_seq_id=seq,
        op_id=seq,
        profiling_name=f"{backend}:all_reduce",
        time_created_ns=called_ns,
        time_discovered_started_ns=called_ns + S // 1000 if backend == "nccl" else None,
        time_discovered_completed_ns=done_ns,
        state="scheduled" if backend == "gloo" else "completed" if done else "started",
        retired=done if retired is None else retired,
        timeout_ms=TIMEOUT_S * 1000,
    )


def written(folder: Path, rank: int, entries: Iterable[dict[str, Any]], at_ns: int, **top: Any) -> None:
    """A record's file with the time at which it was written."""
    file = folder / f"nccl_trace_rank_{rank}"
    file.write_bytes(as_pickle(dump(*entries, **top)))
    os.utime(file, ns=(at_ns, at_ns))


ALL = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}}


def hung(folder: Path, *, retired: bool, written_s: float, calls: int = 6) -> Diagnosis:
    """Rank 2 has not called the last collective, which the others called at `calls` seconds after noon."""
    for rank in range(4):
        last = calls - (rank == 2)
        entries = [
            collective(
                seq,
                NOON + seq * S + rank * 1000,
                done_ns=None if seq == calls else NOON + seq * S + S // 100 + rank * 1000,
                retired=retired or seq < calls,
            )
            for seq in range(1, last + 1)
        ]
        status = {"last_enqueued_collective": last, "last_started_collective": calls - 1}
        top = {**ALL, "pg_status": {"0": {**status, "last_completed_collective": calls - 1}}}
        written(folder, rank, entries, NOON + int((calls + written_s) * S), **top)
    return investigate([str(folder)]).diagnose()


@pytest.mark.parametrize(
    ("retired", "written_s"),
    [(True, TIMEOUT_S + 0.2), (True, 86_400), (False, TIMEOUT_S + 0.2)],
    ids=["given up", "given up, copied a day later", "written when the timeout was over"],
)
def test_what_a_watchdog_gave_up_on_has_not_finished(tmp_path: Path, retired: bool, written_s: float) -> None:
    diagnosis = hung(tmp_path, retired=retired, written_s=written_s)
    assert diagnosis.verdict is not Verdict.HEALTHY
    assert ranks_of(diagnosis) == [2]


def test_a_call_that_was_just_made_is_no_hang(tmp_path: Path) -> None:
    diagnosis = hung(tmp_path, retired=False, written_s=0.3)
    assert (diagnosis.verdict, ranks_of(diagnosis)) == (Verdict.HEALTHY, [])


def test_gloo_records_an_end_only_as_retired(tmp_path: Path) -> None:
    for rank in range(4):
        calls = [collective(seq, NOON + seq * S, done_ns=None, retired=True, backend="gloo") for seq in range(1, 7)]
        written(tmp_path, rank, calls, NOON + 6 * S + S // 10, **ALL, pg_status={})
    assert ranks_of(investigate([str(tmp_path)]).diagnose()) == []


# --- clocks


def test_where_clocks_are_apart_a_files_time_shows_no_wait(tmp_path: Path) -> None:
    """On the clock of ranks 0 to 2, which is 50 s slow, the last call seems to be 50 s old; it was just made."""
    for rank in range(4):
        slow = 50 * S if rank < 3 else 0
        times = [NOON + seq * S + rank * 1000 - slow for seq in range(1, 7 - (rank == 3))]
        calls = [
            collective(seq, at, done_ns=None if seq == 6 else at + S // 100) for seq, at in enumerate(times, start=1)
        ]
        written(tmp_path, rank, calls, NOON + 6 * S + S // 2, **ALL, pg_status={})
    with Store() as store:
        assert ranks_of(investigate([str(tmp_path)], store=store).diagnose()) == []
        assert Records(store).patience_s > 50


# --- several ranks without a record


@pytest.mark.parametrize(("world", "named"), [(16, [3, 4]), (6, [])], ids=["few of many", "a third"])
def test_the_few_ranks_without_a_record_are_named_together(tmp_path: Path, world: int, named: list[int]) -> None:
    top = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(world)])}}, "pg_status": {}}
    for rank in {*range(world)} - {3, 4}:
        entries = [
            collective(seq, NOON + seq * S, done_ns=None if seq == 6 else NOON + seq * S + S // 100, retired=True)
            for seq in range(1, 7)
        ]
        written(tmp_path, rank, entries, NOON + (6 + TIMEOUT_S) * S, **top)
    assert ranks_of(investigate([str(tmp_path)]).diagnose()) == named


# --- a rank that left the path of its program

STAGES = 4


def step(place: int, step_number: int, odd: str | None) -> list[tuple[str, bool]]:
    """The calls of one pipeline stage in a step, by name, each with whether it is a transfer."""
    calls = [] if place == 0 else [(f"recv {place}<-{place - 1}", True)]
    if place < STAGES - 1:
        calls.append((f"send {place}->{place + 1}", True))
        calls.append((f"recv {place}<-{place + 1}", True))
    if place > 0:
        calls.append((f"send {place}->{place - 1}", True))
    if odd == "wrong peer":
        calls = [(name.replace(f"send {place}->{place + 1}", f"send {place}->{place - 1}"), p2p) for name, p2p in calls]
    if odd == "never sent":
        calls = [(name, p2p) for name, p2p in calls if name != f"send {place}->{place + 1}"]
    return [*calls, ("all_reduce", False)]


def pipeline(folder: Path, odd_rank: int, odd: str | None, finishes: Callable[[int, int], int]) -> Diagnosis:
    """Two pipelines of four stages make three steps; in the third, one rank does something else, and all stand.

    `finishes(rank, calls)`: how many of a rank's calls in the last step end.
    """
    for rank in range(2 * STAGES):
        pipe, place = divmod(rank, STAGES)
        members = [*range(pipe * STAGES, (pipe + 1) * STAGES)]
        config = {
            "0": {"name": "0", "desc": "default_pg", "ranks": str([*range(2 * STAGES)])},
            "1": {"name": f"pp{pipe}", "desc": "mesh_pp", "ranks": str(members)},
        }
        entries: list[dict[str, Any]] = []
        p2p = seq = 0
        for number in range(3):
            calls = step(place, number, odd if rank == odd_rank and number == 2 else None)
            ends = len(calls) if number < 2 else finishes(rank, len(calls))
            for at, (name, is_p2p) in enumerate(calls[: ends + 1] if number == 2 else calls):
                p2p, seq = p2p + is_p2p, seq + (not is_p2p)
                called = NOON + number * S + at * S // 100
                done = at < ends
                entries.append(
                    entry(
                        record_id=len(entries),
                        pg_id=1 if is_p2p else 0,
                        process_group=(f"pp{pipe}", "mesh_pp") if is_p2p else ("0", "default_pg"),
                        collective_seq_id=0 if is_p2p else seq,
                        p2p_seq_id=p2p if is_p2p else 0,
                        op_id=p2p if is_p2p else seq,
                        profiling_name=f"nccl:{name}",
                        is_p2p=is_p2p,
                        time_created_ns=called,
                        time_discovered_started_ns=called + S // 200,
                        time_discovered_completed_ns=called + S // 200 if done else None,
                        state="completed" if done else "started",
                        retired=True,
                        timeout_ms=TIMEOUT_S * 1000,
                    )
                )
        written(folder, rank, entries, NOON + (TIMEOUT_S + 3) * S, pg_config=config, pg_status={})
    return investigate([str(folder)]).diagnose()


def test_a_rank_that_sends_to_another_peer_is_named_and_not_the_circle(tmp_path: Path) -> None:
    """Rank 1 sends back instead of on; both of its neighbours wait for it, and it for them."""
    ends = {0: 1, 1: 1, 2: 0, 3: 0, 4: 4, 5: 4, 6: 4, 7: 2}
    diagnosis = pipeline(tmp_path, 1, "wrong peer", lambda rank, calls: min(ends[rank], calls - 1))
    assert ranks_of(diagnosis) == [1]


def test_a_rank_that_never_sends_is_named_and_not_its_peer(tmp_path: Path) -> None:
    """Rank 1 waits for what rank 2 would send after rank 1's own activations."""
    ends = {0: 1, 1: 1, 2: 0, 3: 0, 4: 4, 5: 4, 6: 4, 7: 2}
    diagnosis = pipeline(tmp_path, 1, "never sent", lambda rank, calls: min(ends[rank], calls - 1))
    assert ranks_of(diagnosis) == [1]


# --- a host with a wrong clock in a folder of its own


@pytest.mark.parametrize(("calls_before", "named"), [(0, [6]), (400, [4, 5, 6, 7])], ids=["a clock", "another attempt"])
def test_the_files_of_a_host_whose_clock_is_wrong_belong_to_the_job(
    tmp_path: Path, calls_before: int, named: list[int]
) -> None:
    """The clock of the second host is 47 minutes slow. Records of an attempt before end after fewer calls."""
    top = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(8)])}}, "pg_status": {}}
    for rank in range(8):
        slow = 2834 * S if rank > 3 else 0
        last = 500 - (calls_before if rank > 3 else 0)
        entries = [
            collective(
                seq,
                NOON + seq * S + rank * 1000 - slow,
                done_ns=None if seq == last else NOON + seq * S + S // 100 + rank * 1000 - slow,
                retired=True,
            )
            for seq in range(last - 60, last + 1 - (rank == 6))
        ]
        folder = tmp_path / f"n2{1 + (rank > 3)}"
        folder.mkdir(exist_ok=True)
        written(folder, rank, entries, NOON + (last + TIMEOUT_S) * S - slow, **top)
    assert ranks_of(investigate([str(tmp_path)]).diagnose()) == named


def test_records_without_anything_finished_are_compared(tmp_path: Path) -> None:
    """Rank 3 called minutes before its peers, and nothing shows by how many calls it is behind."""
    top = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(4)])}}, "pg_status": {}}
    for rank in range(4):
        called = NOON - (200 * S if rank == 3 else 0)
        written(tmp_path, rank, [collective(1, called, done_ns=None)], NOON + 600 * S, **top)
    assert investigate([str(tmp_path)]).diagnose().verdict is Verdict.UNDECIDED
