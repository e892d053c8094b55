"""What the gate holds against every answer: that its quotes stand where it says, and that it fits."""

from __future__ import annotations

from pathlib import Path

from ddx_evals.baselines import Case
from ddx_evals.gate.doubts import doubts, sizes
from ddx_evals.gate.table import read_table, table_file
from ddx_evals.incidents import View, named_incidents, staged
from ddx_evals.simulator import write_benchmark
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Claim, NextCheck

IN_HOUSE = ("dev", "test", "later", "unseen")


def test_an_invented_quote_a_source_that_opens_nothing_and_a_live_probe_are_doubted() -> None:
    (incident,) = named_incidents(["dev/146c1b"])
    with staged(incident, View.FULL) as material, Store() as store:
        case = Case(incident, View.FULL, material, store)
        answer = case.found.diagnose()
        assert list(doubts(case, answer, store)) == []
        claims = [
            Claim(finding="rank.raised", claim="x", source="rank 3", quote="never printed"),
            Claim(finding="rank.raised", claim="x", source="material nowhere.log:1", quote="step 1"),
        ]
        check = NextCheck(probe="native_stacks", question="Who holds the lock?")
        wrong = answer.model_copy(update={"evidence": claims, "next_check": check})
        told = list(doubts(case, wrong, store))
    assert len(told) == 3
    assert "does not show 'never printed'" in told[0] and "cannot be opened" in told[1] and "native_stacks" in told[2]


def test_an_answer_about_4096_ranks_fits_one_screen(tmp_path: Path) -> None:
    stalled = write_benchmark(tmp_path / "dumps", 4096, 2)
    answer = investigate([str(tmp_path / "dumps")]).diagnose()
    assert list(sizes(answer)) == []
    assert [rank for suspect in answer.suspects for rank in suspect.ranks] == [stalled]


def test_in_house_seven_answers_of_eight_pass_as_they_are_handed_on() -> None:
    """The gate doubts an answer that passes and, handed on as it was told in three calls, does not.

    Of the others most need the user's own words, which are kept and not interpreted.
    """
    in_house = [outcome for case, outcome in read_table(table_file()).items() if case.startswith(IN_HOUSE)]
    assert sum(outcome.grade == "passed" for outcome in in_house) >= 0.875 * len(in_house)
