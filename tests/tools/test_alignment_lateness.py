"""Who is late in every step, in constructed records of Gloo, which notes no end of a collective."""

from __future__ import annotations

from pathlib import Path

import pytest
from constructed_jobs import Job
from constructed_records import NOW_NS, as_pickle, dump, entry

from ddx_evals.scores.records import answer_of
from ddx_evals.simulator import simulate
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Finding, Verdict

pytestmark = pytest.mark.slow


def _once_a_step(hosts: tuple[str, ...], late: list[int]) -> list[Finding]:
    """A reduction in each step, to which one rank comes 0.4 s after the others; `late` says which."""
    job = Job(3, hosts=hosts)
    world = job.group("0", (0, 1, 2), "default_pg")
    for seq, last in enumerate(late, 1):
        for rank in range(3):
            job.call(rank, world, seq, late_s=0.4 if rank == last else 0.01 * rank)
    return [finding for finding in job.findings() if finding.code == "rank.arrives_late"]


def test_on_one_host_the_times_of_the_calls_show_who_is_late_in_every_step_with_gloo() -> None:
    (late,) = _once_a_step(("vm", "vm", "vm"), [1] * 9)
    assert (late.ranks, late.attributes["last"], late.attributes["late_s"]) == ([1], 9, 0.38)


@pytest.mark.parametrize(
    ("hosts", "late"),
    [
        (("vm", "vm", "vm"), [1, 2, 0] * 3),
        (("vm", "vm", "vm"), [1, 1, 1]),
        (("a", "b", "a"), [1] * 9),
        ((), [1] * 9),
    ],
    ids=["another each time", "three times", "a clock of another host", "hosts unknown"],
)
def test_nobody_is_late_by_turns_or_by_another_clock(hosts: tuple[str, ...], late: list[int]) -> None:
    assert not _once_a_step(hosts, late)


@pytest.mark.parametrize("hosts", [(), ("vm", "vm", "vm"), ("a", "b", "b")], ids=["hosts unknown", "one", "two"])
def test_with_gloo_the_next_call_shows_who_was_in_a_collective_for_the_shortest_time(hosts: tuple[str, ...]) -> None:
    job = Job(3, hosts=hosts)
    world = job.group("0", (0, 1, 2), "default_pg")
    for step in range(9):
        for rank in range(3):
            job.call(rank, world, 2 * step, late_s=0.4 if rank == 1 else 0.0)
            job.call(rank, world, 2 * step + 1, late_s=-0.55)
    (late,) = [finding for finding in job.findings() if finding.code == "rank.arrives_late"]
    assert (late.ranks, late.attributes["by"], late.attributes["last"]) == ([1], "completions", 9)


def test_a_rank_that_is_late_now_and_then_costs_too_little() -> None:
    """Four times of a hundred, by 0.4 s: a checkpoint, say. All others come together, so it is always the same rank."""
    job = Job(3)
    world = job.group("0", (0, 1, 2), "default_pg")
    for step in range(100):
        for rank in range(3):
            job.call(rank, world, 2 * step, late_s=0.4 if rank == 1 and step % 25 == 7 else 0.0)
            job.call(rank, world, 2 * step + 1, late_s=-0.55)
    assert not [finding for finding in job.findings() if finding.code == "rank.arrives_late"]


@pytest.mark.parametrize(("ranks", "told"), [(4, False), (5, True)])
def test_of_a_small_group_no_record_may_be_missing(ranks: int, told: bool) -> None:
    """The one without a record may be as late as the one that seems to be alone."""
    job = Job(ranks, without=(ranks - 1,))
    world = job.group("0", range(ranks), "default_pg")
    for step in range(9):
        for rank in range(ranks):
            job.call(rank, world, 2 * step, late_s=0.4 if rank == 1 else 0.0)
            job.call(rank, world, 2 * step + 1, late_s=-0.55)
    assert bool([finding for finding in job.findings() if finding.code == "rank.arrives_late"]) is told


def test_in_a_job_that_stands_still_nobody_is_late() -> None:
    """Ranks wait for a minute for what Gloo does not record. That two were a bit late before is not why."""
    said = answer_of(simulate(910_012, kind="extra_collective"))
    assert (said.verdict, said.culprits) == (Verdict.UNDECIDED, ())


@pytest.mark.parametrize(
    ("waits_each_time", "every", "late"),
    [(False, 1, False), (True, 1, True)],
    ids=["called ahead", "in every step"],
)
def test_only_who_is_late_again_and_in_most_steps_is_late(
    tmp_path: Path, waits_each_time: bool, every: int, late: bool
) -> None:
    """Rank 1 is 5 s late. Its peers either called all that follows before it came, or waited for it each time."""
    for rank in range(4):
        entries = []
        for seq in range(1, 21):
            late_s = 5.0 if seq % every == 0 else 0.0
            called_s = seq * (6.0 if waits_each_time else 0.01) + (late_s if rank == 1 else 0.0)
            ended_s = seq * (6.0 if waits_each_time else 0.01) + late_s + 0.005
            entries.append(
                entry(
                    record_id=seq,
                    collective_seq_id=seq,
                    op_id=seq,
                    time_created_ns=NOW_NS + int(called_s * 1e9) + rank,
                    time_discovered_started_ns=NOW_NS + int(ended_s * 1e9) - 1_000_000,
                    time_discovered_completed_ns=NOW_NS + int(ended_s * 1e9),
                )
            )
        members = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
        record = dump(*entries, pg_config=members, pg_status={})
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(record))
    found = investigate([str(tmp_path)]).findings
    assert bool([finding for finding in found if finding.code == "rank.arrives_late"]) is late
