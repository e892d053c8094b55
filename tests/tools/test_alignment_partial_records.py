"""What records still tell that hold a part only: of active work, of wrapped rings, without transfers, of some ranks."""

from __future__ import annotations

import pytest
from constructed_jobs import Job
from test_alignment_constructed import of
from test_alignment_simulated import findings_of, judged, seeds

from ddx_evals.scores.records import answer_of
from ddx_evals.simulator import SimulatedJob, simulate
from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Finding, Verdict

pytestmark = pytest.mark.slow


def active(kind: str, seed: int, world_size: int | None = None) -> SimulatedJob:
    """A job whose dumps leave out what is finished."""
    job = simulate(seed, kind=kind, world_size=world_size, lost=0, gloo=False, active=True)
    assert job.description["only_active"]
    return job


def blamed(findings: list[Finding]) -> list[int]:
    return diagnose(findings, load_playbooks()).culprits.ranks


@pytest.mark.parametrize("seed", seeds(*range(10, 15)))
def test_active_work_of_a_healthy_job_accuses_nobody(seed: int) -> None:
    said = judged(active("healthy", seed, 8))
    assert said.verdict is not Verdict.DIAGNOSED and not said.culprits.ranks


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("rank_stalled", 210_020),
        ("rank_exited_early", 210_039),
        ("skipped_collective", 210_003),
        ("wrong_peer", 210_018),
    ],
)
def test_batches_whose_end_is_left_out_are_not_pending(kind: str, seed: int) -> None:
    job = active(kind, seed)
    assert answer_of(job).suspects == job.truth.culprits


def test_without_history_nothing_tells_which_end_left_a_transfer_out() -> None:
    job = active("missing_send", 210_005)
    assert judged(job).verdict is Verdict.UNDECIDED


def test_what_peers_finished_and_a_rank_has_long_had_active_is_frozen() -> None:
    job = active("frozen_completion", 210_034)
    finding = of(findings_of(job), "collective.completion_frozen")
    assert tuple(finding.ranks) == job.truth.culprits


@pytest.mark.long
def test_a_rank_of_whose_active_work_the_ring_lost_the_beginning_is_not_behind() -> None:
    """Ten ranks seem to have come to nothing. What nine of them are in is overwritten, as their counters tell."""
    assert answer_of(simulate(900_010, kind="gpu_stuck")).culprits == ()


def test_waits_of_seconds_are_none_where_nothing_finished_tells_how_long_operations_take() -> None:
    """Stages of a pipeline that goes on wait 2.5 s for each other."""
    assert answer_of(simulate(910_030, kind="healthy")).culprits == ()


def test_a_barrier_of_another_size_is_a_mismatch() -> None:
    job = active("wrong_shape", 210_039)
    assert tuple(of(findings_of(job), "collective.shape_mismatch").ranks) == job.truth.culprits


def ring_that_begins_with_the_end_of_a_batch(*, absent: int | None) -> list[Finding]:
    job = Job(4, first_record=100)
    key = job.group("0", range(4))
    for rank in range(4):
        if rank == 0:
            job.call(rank, key, 5, "coalesced", done=False)
        else:
            job.call(rank, key, 5)
        if rank != absent:
            job.call(rank, key, 6, done=False)
    return job.findings()


def test_the_end_of_an_overwritten_batch_is_not_the_collective_of_its_number() -> None:
    findings = ring_that_begins_with_the_end_of_a_batch(absent=3)
    finding = of(findings, "rank.waited_for")
    assert finding.ranks == [3] and finding.attributes["state"] == "outside" and not finding.attributes["moving"]


def test_and_where_nobody_is_absent_nobody_is_blamed_for_it() -> None:
    assert not blamed(ring_that_begins_with_the_end_of_a_batch(absent=None))


def test_a_gloo_rank_is_outside_if_all_peers_made_as_many_transfers_since() -> None:
    job = simulate(200_020, kind="rank_exited_early", lost=0)
    assert job.description["backend"] == "gloo"
    assert answer_of(job).suspects == job.truth.culprits


@pytest.mark.parametrize("kind", ["missing_send", "missing_recv"])
def test_a_gloo_rank_whose_peer_made_fewer_transfers_is_not_blamed(kind: str) -> None:
    job = simulate(200_020, kind=kind, world_size=12, gloo=True, lost=0)
    assert not judged(job).culprits.ranks


@pytest.mark.long
def test_a_gloo_rank_may_be_in_the_first_transfer_of_its_life() -> None:
    """Later stages of a pipeline wait for the first batch. That none has counted a transfer yet is no absence."""
    assert answer_of(simulate(920_004, kind="rank_stalled")).culprits == ()


def test_a_gloo_job_whose_ranks_are_all_in_transfers_is_not_healthy() -> None:
    assert judged(simulate(200_030, kind="wrong_peer", lost=0)).verdict is Verdict.UNDECIDED


def test_and_one_that_goes_on_is() -> None:
    job = simulate(0, kind="healthy", world_size=8, gloo=True, lost=0)
    assert judged(job).verdict.value in job.truth.verdicts


def in_one_operation(op: str) -> list[Finding]:
    job = Job(4, without=(2,))
    key = job.group("0", range(4))
    for rank in range(4):
        job.call(rank, key, 1)
        job.call(rank, key, 2, op, done=False)
    return job.findings()


def test_a_rank_without_a_record_is_waited_for_where_all_others_stand() -> None:
    """It may have ended, be stopped, or its host may be gone: no cause is told."""
    waited_for = of(in_one_operation("all_reduce"), "rank.waited_for")
    assert (waited_for.ranks, waited_for.attributes["state"]) == ([2], "no_record")
    assert not blamed(in_one_operation("all_reduce"))


def test_but_not_where_all_may_hang_over_a_root_that_no_record_tells() -> None:
    assert of(in_one_operation("broadcast"), "rank.waited_for").attributes["tie"]
    assert not blamed(in_one_operation("broadcast"))


def test_nor_where_a_group_hangs_of_which_all_records_are_there() -> None:
    job = Job(8, without=(6,))
    for members in (range(4), range(4, 8)):
        key = job.group(str(members.start), members)
        for rank in members:
            job.call(rank, key, 1)
            job.call(rank, key, 2, done=False)
    findings = job.findings()
    assert of(findings, "rank.waited_for").ranks == [6] and not blamed(findings)


@pytest.mark.parametrize("groups", [1, 2])
def test_all_ranks_of_a_host_without_records_are_asked_for_and_not_blamed(groups: int) -> None:
    """Any of them may hold up the job, and the records of the others may only be lost with it."""
    job = Job(16, without=(4, 5, 6, 7))
    for first in range(groups):
        members = range(first, 16, groups)
        key = job.group(str(first), members)
        for rank in members:
            job.call(rank, key, 1)
            job.call(rank, key, 2, done=False)
    findings = job.findings()
    assert of(findings, "rank.waited_for").ranks == [4, 5, 6, 7] and not blamed(findings)


def without_a_host_and(lost: int, groups: list[range]) -> Finding:
    job = Job(24, without=(*range(8, 16), lost))
    for number, members in enumerate(groups):
        key = job.group(str(number), members)
        for rank in members:
            job.call(rank, key, 1)
            job.call(rank, key, 2, done=False)
    return of(job.findings(), "rank.waited_for")


def test_of_a_host_without_records_and_one_lost_besides_the_host_is_asked_for() -> None:
    found = without_a_host_and(19, [range(0, 24, 2), range(1, 24, 2)])
    assert found.ranks == [*range(8, 16)] and not found.attributes["tie"]


def test_where_others_wait_for_the_one_only_the_host_does_not_explain_it() -> None:
    found = without_a_host_and(17, [range(16), range(16, 24)])
    assert 17 in found.ranks


@pytest.mark.parametrize("done", [True, False])
def test_who_waits_for_each_other_is_not_healthy_however_short_it_seems(done: bool) -> None:
    """Nothing dates the records: the transfers were called after the last thing that any of them mentions."""
    job = Job(4, moments=dict.fromkeys(range(4)))
    everybody, pair = job.group("0", range(4)), job.group("1", (0, 1), "mesh_pp")
    for rank in range(4):
        for seq in range(1, 4):
            job.call(rank, everybody, seq)
        if rank < 2:
            job.call(rank, pair, 3, "send", peer=f"{rank}->{1 - rank}", is_p2p=True, done=done)
            job.calls[-1] |= {"p2p_seq_id": 1, "collective_seq_id": 0}
    for call in job.calls:
        call |= {"profiling_name": call["profiling_name"].replace("gloo", "nccl")}
        call["state"] = "completed" if call["retired"] else "started"
        call["time_discovered_started_ns"] = call["time_created_ns"] + 1000
    assert ("records.consistent" in {each.code for each in job.findings()}) == done
