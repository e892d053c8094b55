"""The analysis of flight records on simulated jobs of every kind of fault, held against their truth.

The seeds were not used while the rules were made. The bounds are wider than what `ddx evals scores records`
measures over thousands of jobs, since these are few.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from ddx_evals.baselines.torchfrtrace_process import kept_ready, named_in, run_torchfrtrace
from ddx_evals.scores import degradation
from ddx_evals.scores.records import Counts, RecordAnswer, RecordCase, Score, by_kind, cases, judged, scores, shares
from ddx_evals.simulator import KINDS, SimulatedTruth, simulate, size_of, write
from ddx_evals.terminal.tables import markdown

SEEDS = (70_002, 70_003, 70_009)
"""Jobs of 16, 8 and 64 ranks."""
TRUTH = SimulatedTruth("rank_stalled", (3,), (0, 1, 2), ("slow-rank-before-collective",), ("diagnosed",), True)


def check(scored: Sequence[Score], wrong: float, accused: float) -> None:
    """No larger shares than these may be wrong, suspect others where it is plain, or accuse somebody innocent."""
    counts = by_kind(scored)["all"]
    lost = [f"{each.case.kind}:{each.case.seed} {each.answer}" for each in scored if not (each.right and each.exact)]
    assert counts.right >= (1 - wrong) * counts.jobs, lost
    assert counts.plain_suspects >= (1 - wrong) * counts.plain, lost
    assert counts.accuses <= accused * counts.jobs, lost
    assert not any(each.answer.culprits for each in scored if each.case.kind == "healthy")


def test_answers_about_jobs_of_8_ranks_are_right_and_nobody_innocent_is_accused() -> None:
    scored = list(scores([RecordCase(70_003, kind) for kind in KINDS], 1))
    assert len(scored) == len(KINDS)
    check(scored, 0.09, 0.05)


@pytest.mark.long
def test_answers_are_right_and_nobody_innocent_is_accused() -> None:
    wanted = [RecordCase(seed, kind) for kind in KINDS for seed in SEEDS]
    check(list(scores(wanted, min(4, os.cpu_count() or 1))), 0.07, 0.03)


def test_without_dumps_nothing_is_blamed_instead() -> None:
    kinds = ("rank_stalled", "skipped_collective", "gpu_stuck", "missing_recv")
    wanted = [RecordCase(70_003, kind, lost=0.5) for kind in kinds]
    counts = by_kind(scores(wanted, 1))["all"]
    assert counts.accuses <= 1 and counts.undecided >= counts.jobs // 2


@pytest.mark.parametrize(
    ("answer", "right", "exact", "accuses"),
    [
        (RecordAnswer("diagnosed", (3,), "slow-rank-before-collective"), True, True, False),
        (RecordAnswer("diagnosed", (3, 4)), False, False, True),
        (RecordAnswer("diagnosed", (0,)), False, False, True),
        (RecordAnswer("undecided", ()), False, False, False),
        (RecordAnswer("healthy", ()), False, False, False),
    ],
)
def test_an_answer_is_held_against_the_truth(answer: RecordAnswer, right: bool, exact: bool, accuses: bool) -> None:
    found = judged(RecordCase(1, "rank_stalled"), answer, TRUTH)
    assert (found.right, found.exact, found.accuses) == (right, exact, accuses)


def test_undecided_is_right_where_the_truth_accepts_it() -> None:
    truth = TRUTH.accepting("undecided", because="The dumps were lost.")
    found = judged(RecordCase(1, "rank_stalled"), RecordAnswer("undecided", ()), truth)
    assert found.right and not found.exact and not found.plain


def test_counts_are_shown_by_kind_and_in_all() -> None:
    found = judged(RecordCase(1, "rank_stalled"), RecordAnswer("diagnosed", (3,), "slow-rank-before-collective"), TRUTH)
    counts = by_kind([found, found])
    assert counts["rank_stalled"] == Counts(2, 2, 2, 2, 0, 2, 0, 0, 2)
    assert "right 100.0%, exact where it is plain 100.0%" in shares(counts["all"])


def test_the_ranks_that_torchfrtrace_prints_are_read() -> None:
    output = (
        "missing ranks: {4, 5}\nexpected ranks: {0, 1, 4, 5}\n"
        "error msg: Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'broadcast'\n"
    )
    assert named_in(output) == (1, 4, 5)


def test_seeds_of_larger_jobs_are_left_out() -> None:
    seeds = [case.seed for case in cases(20, 0, kinds=("healthy",), largest=16)]
    assert len(set(seeds)) == 20 and max(map(size_of, seeds)) == 16
    assert set(range(seeds[-1])) - set(seeds) == {seed for seed in range(seeds[-1]) if size_of(seed) > 16}


def test_damage_turns_right_answers_into_undecided_or_wrong_ones() -> None:
    answers = [
        RecordAnswer("diagnosed", (3,), "slow-rank-before-collective"),
        RecordAnswer("undecided", ()),
        RecordAnswer("healthy", ()),
        RecordAnswer("diagnosed", (0,)),
    ]
    lost = TRUTH.accepting("undecided", because="The dumps were lost.")
    found = degradation.point("damaged", [judged(RecordCase(1, "rank_stalled"), answer, lost) for answer in answers])
    assert found == degradation.Point("damaged", right=1, undecided=1, wrong=2)
    shown = markdown(degradation.table([found]))
    assert f"| damaged | 25.0% | 25.0% | 50.0% | `{'#' * 10}{'.' * 10}{'!' * 20}` |" in shown


def test_every_degree_of_damage_is_of_the_same_jobs() -> None:
    wanted = cases(4, 0, largest=8)
    settings = degradation.settings(wanted)
    assert len(settings) == len(degradation.LOST) + len(degradation.RINGS)
    assert all(
        [(case.seed, case.kind) for case in each] == [(c.seed, c.kind) for c in wanted] for each in settings.values()
    )


@pytest.mark.needs("torch")
def test_torchfrtrace_answers_many_times_from_one_process_that_ends(tmp_path: Path) -> None:
    job = simulate(0, kind="rank_stalled", world_size=4, gloo=False)
    write(job, tmp_path / "dumps")
    before = set(psutil.Process().children())
    with kept_ready():
        answers = [run_torchfrtrace(tmp_path / "dumps", job.files, limit_s=60) for _ in range(2)]
        assert len(set(psutil.Process().children()) - before) == 1
    assert answers[0] == answers[1] and (answers[0].ranks or answers[0].undecided)
    assert set(psutil.Process().children()) == before
