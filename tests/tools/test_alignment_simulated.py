"""Rules of the analysis, each shown by the flight records of a simulated job whose fault is known (constructed)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ddx_evals.scores.records import answer_of
from ddx_evals.simulator import SimulatedJob, simulate
from ddx_tools.analysis.collectives.records.analyse import analyse
from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Finding, Verdict
from ddx_tools.probes.flight_recorder.material import DUMP, HEADER, record_rows
from ddx_tools.sources.raw import Raw, RawItem

pytestmark = pytest.mark.slow


def seeds(first: int, *more: int) -> list[Any]:
    """One world per commit; the others, which show the same rule, are part of the long matrix."""
    return [first, *(pytest.param(seed, marks=pytest.mark.long) for seed in more)]


@cache
def job_of(kind: str, seed: int) -> SimulatedJob:
    return simulate(seed, kind=kind, world_size=16, lost=0)


def findings_of(job: SimulatedJob, *, without: tuple[int, ...] = ()) -> list[Finding]:
    raw = Raw("unknown")
    for name, data in job.files.items():
        if any(name.split(".")[0].endswith(f"_{rank}") for rank in without):
            continue
        kind = HEADER if name.endswith(".header.json") else DUMP
        raw.items.append(RawItem(kind, data, name, {"path": name, "origin": "file"}))
    with Store() as store:
        store.insert(record_rows(raw))
        return analyse(store)


def told(kind: str, seed: int, code: str) -> tuple[SimulatedJob, Finding]:
    """A job, and the finding of a code, of which there must be one."""
    job = job_of(kind, seed)
    fitting = [finding for finding in findings_of(job) if finding.code == code]
    assert len(fitting) == 1, [finding.summary for finding in fitting]
    return job, fitting[0]


def judged(job: SimulatedJob, **left_out: tuple[int, ...]) -> Diagnosis:
    return diagnose(findings_of(job, **left_out), load_playbooks())


@pytest.mark.parametrize("seed", seeds(300, 301, 302, 305))
def test_a_rank_that_sends_to_another_peer_than_the_one_that_waits_is_the_odd_one(seed: int) -> None:
    job, finding = told("wrong_peer", seed, "rank.waited_for")
    assert tuple(finding.ranks) == job.truth.culprits
    assert finding.attributes["unmatched"] and not finding.attributes["tie"]
    assert judged(job).causes[0].id == "p2p-unmatched"


def test_a_rank_that_made_fewer_transfers_than_its_like_left_one_out() -> None:
    job, finding = told("missing_recv", 300, "rank.waited_for")
    assert tuple(finding.ranks) == job.truth.culprits and finding.attributes["unmatched"]


def test_where_transfers_alone_make_a_circle_all_of_it_is_named() -> None:
    job, finding = told("missing_recv", 307, "p2p.circular_wait")
    assert tuple(finding.ranks) in job.truth.alternatives


@pytest.mark.long
def test_an_extra_call_that_comes_to_light_behind_another_operation_left_nothing_out() -> None:
    job = simulate(910_020, kind="extra_collective")
    (finding,) = [each for each in findings_of(job) if each.code == "collective.operation_mismatch"]
    assert "left_out" not in finding.attributes and finding.attributes["first_site_divergence"]["kind"] == "extra_call"
    assert tuple(judged(job).culprits.ranks) == job.truth.culprits


def test_two_roots_of_a_gather_are_told_by_earlier_gathers() -> None:
    job, finding = told("wrong_root", 302, "collective.root_mismatch")
    assert tuple(finding.ranks) == job.truth.culprits
    assert finding.attributes["roots"] == sorted({0, *job.truth.culprits}) and not finding.attributes["tie"]
    assert judged(job).causes[0].id == "wrong-process-group"


def test_splits_of_an_all_to_all_are_compared_pair_by_pair() -> None:
    job, finding = told("wrong_splits", 301, "collective.shape_mismatch")
    assert tuple(finding.ranks) == job.truth.culprits
    assert finding.attributes["splits"]


def test_unrecorded_splits_are_said_to_be_unrecorded_and_blame_neither_of_a_pair() -> None:
    job, finding = told("wrong_splits", 300, "collective.all_entered")
    assert finding.attributes["splits"] is False and len(finding.ranks) == 2
    assert not judged(job).culprits.ranks


@pytest.mark.parametrize("seed", seeds(302, 303, 305))
def test_of_more_ranks_the_way_back_tells_whose_unrecorded_splits_are_wrong(seed: int) -> None:
    job, finding = told("wrong_splits", seed, "collective.shape_mismatch")
    assert tuple(finding.ranks) == job.truth.culprits == tuple(judged(job).culprits.ranks)


@pytest.mark.parametrize("seed", seeds(300, 303, 304, 305))
def test_a_rank_that_does_not_note_what_its_peers_finished_is_named_also_without_dates(seed: int) -> None:
    job, finding = told("frozen_completion", seed, "collective.completion_frozen")
    assert tuple(finding.ranks) == job.truth.culprits
    assert tuple(judged(job).culprits.ranks) == job.truth.culprits


def test_a_device_that_comes_to_nothing_is_told_by_what_started_elsewhere() -> None:
    job, finding = told("gpu_stuck", 302, "rank.waited_for")
    assert tuple(finding.ranks) == job.truth.culprits and finding.attributes["state"] == "device_behind"
    assert finding.evidence[0].quote.startswith(f"rank {finding.ranks[0]} "), "what it called itself comes first"
    assert finding.evidence[0].quote.endswith("not finished: scheduled")


def test_nobody_is_blamed_where_no_device_has_started() -> None:
    job, finding = told("nobody_entered", 303, "collective.nobody_started")
    assert len(finding.ranks) == 16 and finding.attributes["complete"]
    said = judged(job)
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks
    assert said.causes[0].id == "timeout-too-short"


@pytest.mark.parametrize("seed", seeds(304, 305))
def test_a_rank_that_is_last_again_and_again_is_a_straggler(seed: int) -> None:
    job, finding = told("straggler", seed, "rank.arrives_late")
    assert tuple(finding.ranks) == job.truth.culprits
    assert finding.attributes["late_s"] >= 0.15 and finding.attributes["others_last"] <= finding.attributes["last"] / 3
    assert judged(job).causes[0].id == "straggler"


def test_a_straggler_is_told_by_the_all_to_all_of_its_experts_too() -> None:
    job = simulate(200_007, kind="straggler", lost=0)
    (finding,) = [each for each in findings_of(job) if each.code == "rank.arrives_late"]
    assert tuple(finding.ranks) == job.truth.culprits and finding.group == "mesh_ep"


@pytest.mark.parametrize("seed", seeds(300, 302, 304))
def test_calls_in_another_order_across_groups_show_in_the_minority(seed: int) -> None:
    job = job_of("order_swapped", seed)
    assert tuple(judged(job).culprits.ranks) == job.truth.culprits


@pytest.mark.parametrize("seed", seeds(300, 301, 302, 303, 304, 305))
def test_a_rank_without_a_record_that_explains_all_waiting_is_named(seed: int) -> None:
    job, finding = told("rank_dead", seed, "rank.waited_for")
    assert tuple(finding.ranks) == job.truth.culprits and finding.attributes["state"] == "no_record"


@pytest.mark.long
def test_a_rank_without_a_record_is_named_though_rings_have_lost_what_waits_for_it() -> None:
    job = simulate(600_034, kind="rank_dead")
    (finding,) = [each for each in findings_of(job) if each.code == "rank.waited_for"]
    assert tuple(finding.ranks) == job.truth.culprits and finding.attributes["state"] == "no_record"


@pytest.mark.parametrize("seed", seeds(300, 302, 305))
def test_when_other_records_are_lost_too_a_missing_record_blames_nobody(seed: int) -> None:
    job = job_of("rank_dead", seed)
    others = [rank for rank in range(16) if rank not in job.truth.culprits]
    said = judged(job, without=(others[0], others[5], others[9]))
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks


@pytest.mark.parametrize("seed", seeds(*range(300, 306)))
def test_a_healthy_job_is_never_blamed(seed: int) -> None:
    said = judged(job_of("healthy", seed))
    assert said.verdict is not Verdict.DIAGNOSED and not said.culprits.ranks


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(600_013, id="stages of a pipeline call later than the clock of their host says"),
        pytest.param(600_014, id="what rings have lost was called a moment ago"),
    ],
)
def test_a_healthy_job_in_the_midst_of_its_work_is_healthy(seed: int) -> None:
    assert judged(simulate(seed, kind="healthy")).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param("straggler", 600_015, id="undated, and one device a moment behind while the others are at work"),
        pytest.param("straggler", 600_074, id="undated, and one device not started while others are not either"),
        pytest.param("straggler", 600_029, id="late once in a step of many collectives"),
        pytest.param("rank_stalled", 600_021, marks=pytest.mark.long, id="a peer's ring has lost what it is in"),
        pytest.param(
            "order_swapped", 700_004, id="its call came later in all rounds, and it is in step again after it"
        ),
    ],
)
def test_the_culprit_is_named_though(kind: str, seed: int) -> None:
    job = simulate(seed, kind=kind)
    assert tuple(judged(job).culprits.ranks) == job.truth.culprits


def test_hidden_transfers_leave_a_rank_without_pending_work_undecided() -> None:
    job = job_of("missing_recv", 304)
    assert job.description["backend"] == "gloo"
    said = judged(job)
    assert said.verdict is Verdict.UNDECIDED and not said.culprits.ranks


@pytest.mark.long
def test_findings_stay_few_whatever_the_number_of_groups() -> None:
    job = simulate(302, kind="rank_stalled", world_size=128, lost=0)
    assert len(findings_of(job)) <= 12


def test_counts_of_hidden_transfers_tell_that_a_rank_stands_outside_of_them() -> None:
    job = simulate(50001, kind="rank_stalled", lost=0)
    assert job.description["backend"] == "gloo" and not job.truth.undecided_accepted
    assert answer_of(job).suspects == job.truth.culprits
