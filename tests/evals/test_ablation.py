"""What an arm is worth is a paired difference; who could see the truth is shown, and stands below the others."""

from __future__ import annotations

import pytest
from answers_given import KEY, diagnosis, scored, undecided

from ddx_evals.incidents import View
from ddx_evals.results.ablation import deltas, in_words
from ddx_evals.results.leaderboard import markdown
from ddx_evals.results.run import CaseResult
from ddx_evals.results.summary import summaries
from ddx_evals.scoring import ToolCall, Transcript, quotable_texts

RIGHT, WRONG = scored(diagnosis()), scored(undecided())


def result(incident: str, arm: str, *, right: bool | None, system: str = "m", unsealed: bool = False) -> CaseResult:
    """One try; None is a run that failed."""
    score = None if right is None else RIGHT if right else WRONG
    return CaseResult(
        system=system,
        split="dev",
        incident=incident,
        view=View.FULL,
        arm=arm,
        unsealed=unsealed,
        truth="uneven-data",
        score=score,
        error="killed" if right is None else "",
    )


def test_arms_are_compared_with_the_barest_one_on_the_cases_that_both_tried() -> None:
    results = [result(name, "none", right=name == "a") for name in ("a", "b", "c", "d")]
    results += [result(name, "all", right=name != "d") for name in ("a", "b", "c", "d")]
    results += [result("a", "shell", right=False)]
    told = {delta.arm: delta for delta in deltas(results)}
    assert (told["all"].base, told["all"].cases, told["all"].passed) == ("none", 4, 0.5)
    assert told["all"].passed_error == pytest.approx((4 / 3 * 4 * 0.25) ** 0.5 / 4)
    assert (told["shell"].cases, told["shell"].passed) == (1, -1.0)
    assert in_words(told["all"]).startswith("m, dev, full: all passes +50 ± 29 points compared with none")


def test_a_failed_run_counts_as_not_passed() -> None:
    (delta,) = deltas([result("a", "none", right=True), result("a", "all", right=None)])
    assert (delta.passed, delta.passed_error) == (-1.0, None)


def test_one_arm_alone_and_baselines_have_no_difference() -> None:
    assert deltas([result("a", "all", right=True), result("a", "", right=False, system="grep")]) == []


def test_what_is_unsealed_stands_last_and_is_not_ranked() -> None:
    rows = summaries([result("a", "all", right=True, system="peeks", unsealed=True), result("a", "all", right=False)])
    assert [(row.name, row.unsealed) for row in rows] == [("m [all]", False), ("peeks [all]", True)]
    assert "| peeks [all] (unsealed: not ranked) | 100 % |" in markdown(rows)


def test_sealed_and_unsealed_tries_of_one_system_are_not_mixed() -> None:
    rows = summaries([result("a", "all", right=True, unsealed=True), result("a", "all", right=False)])
    assert [(row.unsealed, row.passed) for row in rows] == [(False, 0.0), (True, 1.0)]


def test_several_tries_give_pass_hat_k_and_both_denominators() -> None:
    tries = [result("a", "all", right=True), result("a", "all", right=True)]
    tries += [result("b", "all", right=True), result("b", "all", right=None)]
    (row,) = summaries(tries)
    assert (row.epochs, row.pass_hat_k, row.passed, row.passed_of_all) == (2, 0.5, 1.0, 0.75)


# --- what of a transcript may be quoted


def quotable(output: str, *, quotable: bool = True, **arguments: object) -> list[str]:
    call = ToolCall(tool="query_evidence", arguments=dict(arguments), output=output, quotable=quotable)
    return list(quotable_texts(Transcript(calls=[call])))


def test_texts_inside_json_are_quoted_as_they_read() -> None:
    assert quotable('{"rows": [["said \\"no\\"\\nand left", 3, null]]}') == ['said "no"\nand left', "3"]
    assert quotable(f"plain: {KEY}") == [f"plain: {KEY}"]


def test_what_the_caller_said_itself_is_no_evidence() -> None:
    assert quotable('{"rows": [["rank 2 lied"], ["rank 2 left"]]}', sql="SELECT 'rank 2 lied'") == ["rank 2 left"]
    assert quotable("rank 2 lied", quotable=False) == []
