"""A rank that works while its peers wait: where the program lets it, it holds nobody up yet (constructed)."""

from __future__ import annotations

from typing import Any

import pytest
from constructed_programs import Program
from made_findings import first, judged, seen

from ddx_tools.diagnosis.suspects import with_suspects
from ddx_tools.model.diagnosis import Certainty, Verdict


@pytest.mark.parametrize(("awaited", "verdict"), [(True, Verdict.UNDECIDED), (None, Verdict.DIAGNOSED)])
def test_who_gets_on_with_a_checkpoint_that_its_peers_wait_for_is_no_fault_yet(
    awaited: bool | None, verdict: Verdict
) -> None:
    waits = seen("collective.peers_wait", 1, 2, operation="barrier", kind="collective", wait_s=6.0, basis="stacks")
    facts: dict[str, Any] = {"activity": "sleep", "moving": True, "minority": True, "relation": "before"}
    said = judged(waits, seen("rank.outside_collective", 0, awaited_work=awaited, basis="stacks", **facts))
    assert (said.verdict, first(said)) == (verdict, "slow-rank-before-collective")


@pytest.mark.parametrize(
    ("guard", "call", "awaited"),
    [
        ("job.is_main_process", "barrier", True),
        ("job.is_main_process", "all_reduce", None),
        ("job.due", "barrier", True),
        ("job.due", "all_reduce", None),
    ],
)
@pytest.mark.parametrize("work", ["evaluate", "publish"])
def test_who_is_let_work_alone_holds_nobody_up(guard: str, call: str, work: str, awaited: bool | None) -> None:
    """Whatever the work is called: a barrier behind it lets the others wait."""
    program = Program(
        f"def main(job):\n    if {guard}:\n        {work}(job)\n    dist.{call}()\n"
        f"def {work}(job):\n    score(1)\n    score(2)\n",
        between_looks_s=6.0,
    )
    program.rank(0, "", f"{work}(job)", "score(1)", then="score(2)")
    for rank in (1, 2, 3):
        program.rank(rank, call, f"dist.{call}")
    (found,) = (f for f in program.findings() if f.code == "rank.outside_collective")
    assert found.attributes.get("awaited_work") is awaited


@pytest.mark.parametrize(("work", "activity"), [("time.sleep(8)", "sleep"), ("child.wait()", "subprocess_wait")])
@pytest.mark.parametrize(("waited_s", "awaited"), [(6.0, True), (90.0, None)])
def test_a_sleep_or_a_child_may_end_within_a_minute(
    work: str, activity: str, waited_s: float, awaited: bool | None
) -> None:
    text = f"def main(job):\n    if job.rank == 0:\n        {work}\n    dist.barrier()\n"
    program = Program(text, between_looks_s=waited_s)
    waits = [("_try_wait", "/v/lib/python3.11/subprocess.py")] if activity == "subprocess_wait" else []
    program.rank(0, "", work, inside=waits)
    for rank in (1, 2, 3):
        program.rank(rank, "barrier", "dist.barrier")
    (found,) = (f for f in program.findings() if f.code == "rank.outside_collective")
    assert (found.attributes["activity"], found.attributes.get("awaited_work")) == (activity, awaited)


def test_who_is_let_work_alone_is_a_suspect_only_if_it_does_not_end_soon() -> None:
    waits = seen("collective.peers_wait", 1, 2, operation="barrier", kind="collective", wait_s=6.0, basis="stacks")
    facts: dict[str, Any] = {"activity": "sleep", "moving": False, "minority": True, "relation": "before"}
    alone = seen("rank.outside_collective", 0, awaited_work=True, basis="stacks", **facts)
    (suspect,) = with_suspects(judged(waits, alone), [waits, alone], {}).suspects
    assert (suspect.ranks, suspect.certainty) == ([0], Certainty.LIKELY)
    assert "sample it again" in suspect.unless


def test_who_gets_on_with_sleeps_in_an_evaluation_that_its_peers_are_in_holds_nobody_up() -> None:
    """No condition on the rank is needed where all are in one evaluation."""
    work = "    time.sleep(1)\n    time.sleep(2)\n    dist.barrier()\n"
    text = f"def main(job):\n    evaluate(job)\ndef evaluate(job):\n{work}"
    program = Program(text, between_looks_s=6.0)
    program.rank(0, "", "evaluate(job)", "sleep(1)", then="sleep(2)")
    for rank in (1, 2, 3):
        program.rank(rank, "barrier", "evaluate(job)", "dist.barrier")
    (found,) = (f for f in program.findings() if f.code == "rank.outside_collective")
    assert (found.attributes["activity"], found.attributes.get("awaited_work")) == ("sleep", True)
