"""Rules of the analysis that no recorded job shows: constructed records, so small that each can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from constructed_jobs import Job

from ddx_tools.model.diagnosis import Finding

pytestmark = pytest.mark.slow


def codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def of(findings: list[Finding], code: str) -> Finding:
    fitting = [finding for finding in findings if finding.code == code]
    assert len(fitting) == 1, [finding.summary for finding in findings]
    return fitting[0]


def loop(job: Job, group: str, rank: int, lines: Sequence[int | str]) -> None:
    """Calls of one rank, by line; a text stands for a function of its own."""
    for seq, line in enumerate(lines, 1):
        if isinstance(line, str):
            job.call(rank, group, seq, line=1, function=line)
        else:
            job.call(rank, group, seq, line=line)


# --- call sites -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 4, 9])
def test_an_extra_call_is_found_wherever_it_is(at: int) -> None:
    job = Job(4)
    group = job.group("0", range(4))
    lines = [10, 20, 30] * 5
    for rank in range(4):
        loop(job, group, rank, [*lines[:at], 55, *lines[at:]][:15] if rank == 2 else lines)
    finding = of(job.findings(), "collective.call_site_shift")
    assert finding.ranks == [2] and finding.attributes["seq"] == at + 1
    assert finding.locations[0].line == 55


@pytest.mark.parametrize("left_out", [1, 2])
def test_calls_left_out_are_counted(left_out: int) -> None:
    job = Job(4)
    group = job.group("0", range(4))
    lines = [10, 20, 30, 40] * 4
    for rank in range(4):
        loop(job, group, rank, [*lines[:5], *lines[5 + left_out :]] if rank == 1 else lines)
    finding = of(job.findings(), "collective.call_site_shift")
    assert finding.ranks == [1] and finding.attributes["shift"] == -left_out
    assert finding.locations[0].line == 20, "the call that the peers made and it did not"


def test_other_lines_by_rank_throughout_are_no_shift() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        loop(job, group, rank, [10, "send" if rank == 0 else "receive", 30] * 4)
    assert codes(job.findings()) == {"records.consistent"}


def test_a_shift_shows_behind_other_lines_by_rank() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        mine = [10, "send" if rank == 0 else "receive", 30] * 4
        loop(job, group, rank, [*mine[:6], 77, *mine[6:]] if rank == 0 else mine)
    finding = of(job.findings(), "collective.call_site_shift")
    assert finding.ranks == [0] and finding.attributes["seq"] == 7


def test_a_root_that_rotates_between_two_lines_is_no_shift() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        for seq in range(1, 13):
            job.call(rank, group, seq, "broadcast", line=11 if seq % 4 == rank else 22)
    assert codes(job.findings()) == {"records.consistent"}


def test_peers_of_a_rank_with_an_extra_call_are_not_missing_where_it_waits_at_the_end() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    lines = [10, 20, 30] * 3
    for rank in range(4):
        loop(job, group, rank, [*lines[:4], 55, *lines[4:-1]] if rank == 0 else lines)
    job.call(0, group, 10, line=30, done=False)
    found = job.findings()
    assert of(found, "collective.call_site_shift").ranks == [0]
    assert not codes(found) & {"collective.missing_ranks", "rank.waited_for"}


def test_an_odd_call_among_calls_of_one_line_is_told_with_its_doubt() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        loop(job, group, rank, [10, 10, 55, 10, 10, 10] if rank == 3 else [10] * 6)
    finding = of(job.findings(), "collective.call_site_shift")
    assert finding.ranks == [3] and finding.attributes["ambiguous"]
    assert "may also have replaced another" in finding.summary


def test_two_ranks_that_part_name_neither() -> None:
    job = Job(2)
    group = job.group("0", range(2))
    loop(job, group, 0, [10, 20, 10, 20, 10, 20])
    loop(job, group, 1, [10, 20, 55, 10, 20, 10])
    finding = of(job.findings(), "collective.call_site_shift")
    assert finding.attributes["tie"] and finding.ranks == [0, 1]


def test_without_frames_a_shifted_sequence_of_operations_is_found() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    ops = ["all_reduce", "all_gather", "reduce_scatter"] * 4
    for rank in range(4):
        mine = [*ops[:4], *ops[3:]] if rank == 1 else ops
        for seq, op in enumerate(mine, 1):
            job.call(rank, group, seq, op)
    found = job.findings()
    assert of(found, "collective.operation_mismatch").ranks == [1]
    shift = of(found, "collective.call_site_shift")
    assert shift.ranks == [1] and shift.attributes["compared"] == "operations_and_sizes"


# --- what may differ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "mine", "theirs"),
    [
        ("all_reduce", ((2, 4),), ((4, 2),)),
        ("all_to_all", ((3,),), ((9,),)),
        ("alltoall_base", ((3,),), ((9,),)),
        ("barrier", (), ((1,),)),
        ("coalesced", ((3,),), ((9,),)),
    ],
)
def test_sizes_that_may_differ_by_rank_are_no_mismatch(op: str, mine: Any, theirs: Any) -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        job.call(rank, group, 1, op, sizes=mine if rank == 1 else theirs)
    assert "collective.shape_mismatch" not in codes(job.findings())


@pytest.mark.parametrize("op", ["all_reduce", "all_gather_into_tensor_coalesced", "_reduce_scatter_base", "broadcast"])
def test_sizes_that_must_agree_are_compared(op: str) -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank in range(4):
        job.call(rank, group, 1, op, sizes=((7,), (8,)) if rank == 1 else ((8,), (8,)))
    assert of(job.findings(), "collective.shape_mismatch").ranks == [1]


def test_three_kinds_without_a_majority_name_nobody() -> None:
    job = Job(4)
    group = job.group("0", range(4))
    for rank, op in enumerate(["all_reduce", "all_reduce", "barrier", "broadcast"]):
        job.call(rank, group, 1, op)
    finding = of(job.findings(), "collective.operation_mismatch")
    assert finding.attributes["tie"] and finding.ranks == [0, 1, 2, 3]


# --- waiting ----------------------------------------------------------------------------------------------------


def waiting_job(ranks: int = 4, **job: Any) -> tuple[Job, str]:
    """All ranks did collective 1; all but the last wait in 2 since second 2."""
    built = Job(ranks, **job)
    group = built.group("0", range(ranks), "default_pg")
    for rank in range(ranks):
        built.call(rank, group, 1)
        if rank < ranks - 1:
            built.call(rank, group, 2, done=False)
    return built, group


def test_a_rank_that_was_looked_at_later_and_is_not_there_is_missing() -> None:
    job, _ = waiting_job()
    found = job.findings()
    assert of(found, "collective.missing_ranks").ranks == [3]
    assert of(found, "collective.peers_wait").attributes["wait_s"] == 98


@pytest.mark.parametrize("moment", [0.5, 2.5, 3.9])
def test_a_rank_that_was_looked_at_too_early_is_not_missing(moment: float) -> None:
    job, _ = waiting_job(moments={3: moment})
    found = job.findings()
    assert "collective.missing_ranks" not in codes(found)
    assert of(found, "records.not_simultaneous").attributes["too_early"] == [3]


def test_a_record_that_a_peer_has_overtaken_is_stale_whatever_its_clock_says() -> None:
    job, _ = waiting_job()
    job.calls = [call for call in job.calls if call["rank"] != 3]
    found = job.findings()
    assert "collective.missing_ranks" not in codes(found)
    assert of(found, "records.not_simultaneous").attributes["stale"] == [3]


def test_a_wait_of_a_moment_is_none() -> None:
    job, _ = waiting_job(taken_s=3)
    assert codes(job.findings()) == {"records.consistent"}


def test_an_undated_absence_is_said_with_its_doubt() -> None:
    job, _ = waiting_job(moments=dict.fromkeys(range(4)))
    finding = of(job.findings(), "collective.missing_ranks")
    assert finding.attributes["simultaneous"] == "unknown" and finding.severity == "warning"


def test_a_rank_without_a_record_is_named_as_unread_and_not_as_missing() -> None:
    job, _ = waiting_job(without=(3,))
    found = job.findings()
    assert codes(found) == {"collective.peers_wait", "rank.waited_for", "records.rank_missing"}
    assert of(found, "rank.waited_for").attributes["state"] == "no_record"


def test_one_that_waits_for_three_is_no_reason_to_blame_three() -> None:
    job = Job(4)
    group = job.group("0", range(4), "default_pg")
    for rank in range(4):
        job.call(rank, group, 1)
    job.call(0, group, 2, done=False)
    finding = of(job.findings(), "collective.missing_ranks")
    assert finding.ranks == [1, 2, 3] and not finding.attributes["minority"] and not finding.attributes["tie"]
    assert finding.severity == "warning"


def test_everybody_inside_and_nobody_out_is_no_absence() -> None:
    job, group = waiting_job()
    job.call(3, group, 2, done=False)
    assert codes(job.findings()) == {"collective.peers_wait", "collective.all_entered"}


def test_a_wrapped_record_without_entries_of_a_group_proves_no_absence() -> None:
    job, _ = waiting_job(first_record=500)
    other = job.group("1", (0, 3), "mesh_tp")
    job.call(0, other, 9, done=False)
    blamed = [f.group for f in job.findings() if f.code == "collective.missing_ranks"]
    assert blamed == ["default_pg"]


def test_ranks_that_wait_for_each_other_across_groups_are_a_root_together() -> None:
    job = Job(4)
    dp, tp = job.group("1", (0, 1), "mesh_dp"), job.group("2", (0, 1, 2, 3), "mesh_tp")
    for rank in range(4):
        job.call(rank, tp, 1)
    for rank in (0, 1):
        job.call(rank, dp, 1)
    job.call(0, dp, 2, done=False)
    for rank in (1, 2, 3):
        job.call(rank, tp, 2, done=False)
    chain = of(job.findings(), "rank.waited_for")
    assert chain.ranks == [0, 1] and chain.attributes["waiting"] == 2


def test_the_minority_of_a_mismatch_is_the_root_of_what_follows_in_other_groups() -> None:
    job = Job(6)
    dp, tp = job.group("1", range(4), "mesh_dp"), job.group("2", (3, 4, 5), "mesh_tp")
    for rank in range(4):
        job.call(rank, dp, 1, "barrier" if rank == 3 else "all_reduce", done=False)
    for rank in (4, 5):
        job.call(rank, tp, 1, done=False)
    chain = of(job.findings(), "rank.waited_for")
    assert chain.ranks == [3] and chain.attributes["waiting"] == 5


def test_records_that_list_no_members_join_the_group_of_those_that_do() -> None:
    job = Job(4)
    known = job.group("5", range(4), "mesh")
    for rank in range(3):
        job.call(rank, known, 1)
    job.call(3, job.group("5", None, "mesh"), 1, "barrier")
    assert of(job.findings(), "collective.operation_mismatch").ranks == [3]
