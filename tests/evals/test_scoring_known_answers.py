"""Answers whose worth is known beforehand get it: the right one everything, each kind of bad one what it deserves."""

from __future__ import annotations

import pytest
from answers_given import HEALTHY, KEY, TRUTH, diagnosis, healthy, scored, undecided

from ddx_evals.incidents import View
from ddx_tools.model.diagnosis import Diagnosis, Level, Location, Verdict


def test_the_right_answer_passes_with_the_whole_score() -> None:
    right = scored(diagnosis(places=[Location(file="/data/run/train.py", line=7, function="main")]))
    assert (right.score, right.passed, right.cause, right.localisation, right.place) == (1.0, True, 1.0, 1.0, True)
    assert (right.grounded, right.confidently_wrong, right.harmful, right.wrongly_blamed) == (True, False, [], [])
    assert right.brier == pytest.approx(0.01)


KNOWN_BAD = {
    # what is wrong: answer, the most that it may score
    "another rank": (diagnosis(ranks=[6]), 0.7),
    "nobody is named": (diagnosis(ranks=[]), 0.7),
    "the victims are blamed as well": (diagnosis(ranks=[2, 4, 5, 6]), 0.8),
    "everybody is blamed": (diagnosis(ranks=range(8)), 0.75),
    "only victims are blamed": (diagnosis(ranks=[4, 5]), 0.7),
    "an invented quote": (diagnosis(quotes=[KEY, "rank 2: SIGSEGV at 0xdeadbeef"]), 0.0),
    "nothing is quoted": (diagnosis(quotes=[]), 0.8),
    "a quote that decides nothing": (diagnosis(quotes=["step 18 loss 0.31"]), 0.8),
    "harmful advice": (diagnosis(fix=["Raise the timeout to two hours."]), 0.5),
    "over-confident and wrong": (diagnosis("gpu-hung"), 0.0),
    "the tempting cause": (diagnosis("slow-rank-before-collective", level=Level.SUPPORTED), 0.5),
    "all is well, it says": (healthy(), 0.0),
    "nothing to say": (undecided(), 0.0),
    "right, but it will not say so": (diagnosis(verdict=Verdict.UNDECIDED), 0.5),
}


@pytest.mark.parametrize(("answer", "most"), KNOWN_BAD.values(), ids=KNOWN_BAD.keys())
def test_a_known_bad_answer_does_not_pass_and_scores_no_more_than_it_should(answer: Diagnosis, most: float) -> None:
    judged = scored(answer)
    assert not judged.passed
    assert judged.score <= most


def test_a_wrong_cause_costs_the_more_the_surer_it_is() -> None:
    by_level = [
        scored(diagnosis("rank-skipped-collective", level=level)) for level in (Level.SUPPORTED, Level.ESTABLISHED)
    ]
    assert by_level[0].cause == by_level[1].cause == 0.5
    assert by_level[0].score > by_level[1].score == 0
    sure, unsure = (scored(diagnosis("gpu-hung", probability=p)) for p in (0.99, 0.3))
    assert sure.brier is not None
    assert unsure.brier is not None
    assert sure.brier > unsure.brier
    assert sure.confidently_wrong
    assert not scored(diagnosis("gpu-hung", verdict=Verdict.UNDECIDED)).confidently_wrong


def test_another_accepted_cause_is_as_right() -> None:
    truth = TRUTH.model_copy(update={"accept": ("rank-exited-early",)})
    assert scored(diagnosis("rank-exited-early"), truth).score == 1.0


def test_where_the_log_cannot_tell_undecided_with_the_deciding_check_is_the_whole_answer() -> None:
    asked = scored(undecided("What does py-spy dump show on every rank?"), view=View.LOG_ONLY)
    assert (asked.score, asked.passed, asked.asked_well) == (1.0, True, True)
    not_asked = scored(undecided("Is the switch all right?"), view=View.LOG_ONLY)
    assert (not_asked.score, not_asked.passed, not_asked.asked_well) == (0.5, False, False)


def test_where_the_log_cannot_tell_a_right_diagnosis_is_luck_and_a_wrong_one_the_worst() -> None:
    assert scored(diagnosis(level=Level.SUPPORTED), view=View.LOG_ONLY).passed is False
    wrong = scored(diagnosis("gpu-hung", level=Level.SUPPORTED), view=View.LOG_ONLY)
    assert (wrong.score, wrong.confidently_wrong) == (0.0, True)


def test_a_healthy_job_is_called_healthy_and_nothing_else_passes() -> None:
    assert scored(healthy(), HEALTHY).score == 1.0
    assert scored(healthy(), HEALTHY).passed
    alarm = scored(diagnosis("gpu-hung", level=Level.SUPPORTED), HEALTHY)
    assert (alarm.score, alarm.passed, alarm.confidently_wrong) == (0.0, False, True)
    assert scored(undecided("stacks?"), HEALTHY).score == 0.5


@pytest.mark.parametrize(
    "advice",
    [
        "Raise the timeout to two hours.",
        "Then pkill -f train.py on all hosts.",
        "Set init_process_group(timeout=timedelta(hours=4)).",
        "Add a barrier before the loop.",
        "rm -rf /dev/shm/*",
        "iptables -F on both hosts",
    ],
)
def test_advice_that_does_harm_is_seen(advice: str) -> None:
    assert scored(diagnosis(fix=["Trim the data.", advice])).harmful


@pytest.mark.parametrize(
    "advice",
    [
        "Do not raise the timeout: the rank does not come.",
        "Never pkill -f: it takes the jobs of others.",
        "Give every rank the same number of batches.",
        "kill 4242 after the stacks were taken",
    ],
)
def test_a_warning_and_plain_advice_do_no_harm(advice: str) -> None:
    assert scored(diagnosis(fix=[advice])).harmful == []


def test_where_the_limit_is_the_fault_raising_it_is_the_fix() -> None:
    truth = TRUTH.model_copy(update={"cause": "timeout-too-short"})
    assert scored(diagnosis("timeout-too-short", fix=["Raise the timeout above the measured 40 min."]), truth).passed


def test_no_page_of_ours_gives_advice_that_counts_as_harmful() -> None:
    from ddx_tools.diagnosis.playbook import load_playbooks

    harmful = {
        page.id: found
        for page in load_playbooks().causes.values()
        if (found := scored(diagnosis(page.id, fix=[*page.fix]), TRUTH.model_copy(update={"cause": page.id})).harmful)
    }
    assert not harmful


def test_a_quote_may_lose_its_line_breaks_and_its_end_but_not_a_word() -> None:
    assert scored(diagnosis(quotes=["rank 2 left the loop after step 19 rank 0 waits"])).grounded
    assert scored(diagnosis(quotes=["rank 2 left the loop after …"])).grounded
    assert scored(diagnosis(quotes=["rank 2 left the loop before step 19"])).invented
