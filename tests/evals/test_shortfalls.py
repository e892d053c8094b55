"""What an answer lacks is said in a line that helps its author and tells nothing of the truth."""

from __future__ import annotations

import pytest
from answers_given import HEALTHY, KEY, TRUTH, diagnosis, healthy, scored, undecided

from ddx_evals.incidents import View
from ddx_evals.results.run import CaseResult
from ddx_evals.results.shortfalls import failures, shortfalls
from ddx_evals.scoring import CaseScore
from ddx_tools.model.diagnosis import Verdict

CAUSE_WRONG = diagnosis("python-deadlock")


def result(score: CaseScore | None = None, named: str = "python-deadlock 0.90", **given: object) -> CaseResult:
    asked = {"system": "mine", "arm": "all", "split": "dev", "incident": "0a", "view": View.FULL, "truth": TRUTH.cause}
    return CaseResult.model_validate({**asked, "named": [named], "score": score, **given})


@pytest.mark.parametrize(
    ("score", "lacks"),
    [
        (scored(CAUSE_WRONG), "cause wrong (named python-deadlock)"),
        (scored(diagnosis(ranks=(3,))), "place wrong"),
        (scored(diagnosis(quotes=["step 18 loss 0.31"])), "no key fact quoted"),
        (scored(diagnosis(quotes=[])), "nothing quoted"),
        (scored(diagnosis(quotes=[KEY, "never \x1b[31mprinted"])), r"invented quote 'never \x1b[31mprinted'"),
        (scored(undecided()), "verdict undecided wrong"),
        (scored(healthy()), "verdict healthy wrong"),
        (scored(undecided("which kernel?"), view=View.LOG_ONLY), "the next check is not the one that settles it"),
        (scored(diagnosis(fix=["Raise the timeout to two hours."])), "harmful advice"),
        (scored(diagnosis(verdict=Verdict.HEALTHY), HEALTHY), "a rank blamed in a healthy job"),
    ],
)
def test_each_lack_has_its_words(score: CaseScore, lacks: str) -> None:
    assert not score.passed
    assert shortfalls([result(score)]) == [f"not passed: mine [all] on dev/0a full: {lacks}"]


@pytest.mark.parametrize(
    "score", [scored(diagnosis()), scored(undecided("the stack"), view=View.LOG_ONLY), scored(healthy(), HEALTHY)]
)
def test_of_what_passes_nothing_is_said(score: CaseScore) -> None:
    assert score.passed
    assert shortfalls([result(score)]) == []


def test_several_lacks_stand_in_one_line_and_the_right_cause_in_none() -> None:
    worst = scored(diagnosis("python-deadlock", ranks=(5,), quotes=["never printed"]))
    (line,) = shortfalls([result(worst, epoch=2)])
    assert "full, try 2: cause wrong (named python-deadlock), place wrong" in line
    assert TRUTH.cause not in line


def test_lines_are_bounded_for_each_system() -> None:
    wrong = scored(CAUSE_WRONG)
    lines = shortfalls([*(result(wrong, incident=f"{n}") for n in range(23)), result(wrong, system="other")])
    assert len(lines) == 22
    assert lines[20] == "… and 3 more: --json, or the file of --out"
    assert "other" in lines[21]


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        ("no diagnosis was reported (exit 127)", True),
        ("no diagnosis was reported (exit 126)", True),
        ("no diagnosis was reported (exit 2): cannot open agent.py: No such file", True),
        ("no diagnosis was reported (exit 1): out of tokens", False),
    ],
)
def test_a_program_that_was_not_found_brings_a_hint_once(error: str, hinted: bool) -> None:
    first, *others = failures([result(error=error), result(scored(diagnosis())), result(error=error)])
    assert first == f"failed: mine [all] on dev/0a full: {error}"
    assert others[0] == first
    assert len(others[1:]) == hinted
