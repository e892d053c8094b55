"""`healthy` is said of machine evidence alone: an end with exit status 0, behind all steps, of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddx_tools.diagnosis.submitted import fact_finding
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Verdict

STEPS = "".join(f"step {step} loss {2 - step / 10:.2f}\n" for step in range(5))
WARNED = (
    "[rank0]:[W1120 12:00:31.000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed\n"
)


def verdict(directory: Path, log: str, *facts: str, note: str = "", name: str = "train.log") -> Verdict:
    (directory / name).write_text(log)
    told = [fact_finding(fact) for fact in facts]
    return investigate([str(directory)], notes=[note] if note else [], told=told).diagnose().verdict


@pytest.mark.parametrize(
    "end", ["exit status: 0\n", "ddx run: the launcher ended with exit code 0\n", "$ echo $?\n0\n"]
)
@pytest.mark.parametrize("note", ["", "Something is wrong with this training job. What is it, and why?"])
def test_an_end_with_exit_status_zero_is_healthy(tmp_path: Path, end: str, note: str) -> None:
    assert verdict(tmp_path, STEPS + WARNED + end, note=note) is Verdict.HEALTHY


def _exit_notes(directory: Path) -> None:
    """What the agents of `ddx run` leave when the interpreters of two ranks exit."""
    for rank in (0, 1):
        note = f'{{"rank": {rank}, "pid": {40 + rank}, "at_ns": 1795866616244783911, "failed": false, "host": "vm"}}'
        (directory / f"rank-{rank}.{40 + rank}.exit.json").write_text(note)


def test_exit_notes_of_ranks_leave_a_clean_end_healthy(tmp_path: Path) -> None:
    _exit_notes(tmp_path)
    assert verdict(tmp_path, STEPS + "ddx run: the launcher ended with exit code 0\n") is Verdict.HEALTHY


def test_exit_notes_alone_are_no_clean_end(tmp_path: Path) -> None:
    _exit_notes(tmp_path)
    assert verdict(tmp_path, STEPS) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "log",
    [
        STEPS,
        STEPS + "exit status: 1\n",
        STEPS + "$ echo $?\n1\n",
        "download: exit status: 0\n" + STEPS,
        STEPS + "exit code 0 is what we wait for\n",
        STEPS + "exit code: 0.5\n",
    ],
    ids=["a log that stops", "another status", "a shell's other status", "steps behind it", "a sentence", "a number"],
)
def test_what_is_no_clean_end_is_not_healthy(tmp_path: Path, log: str) -> None:
    assert verdict(tmp_path, log) is Verdict.UNDECIDED


def test_one_rank_that_ended_well_says_nothing_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("[rank0]: step 1 loss 2.0\n[rank0]: step 2 loss 1.9\n")
    assert verdict(tmp_path, "[rank1]: step 1 loss 2.0\n[exit code 0]\n", name="rank1.log") is Verdict.UNDECIDED


@pytest.mark.parametrize("fact", ["hangs", "wrong_results", "fails_in_evaluation", "works_on_one_node=no"])
def test_healthy_never_stands_against_who_reports_a_fault(tmp_path: Path, fact: str) -> None:
    assert verdict(tmp_path, STEPS + "exit status: 0\n", fact) is not Verdict.HEALTHY
    assert verdict(tmp_path, STEPS + "exit status: 0\n", "hangs=no") is Verdict.HEALTHY


def test_what_a_program_says_of_its_end_is_not_enough_beside_a_note(tmp_path: Path) -> None:
    """Behind "Training finished" a job can hang, and the note may say so: it is not interpreted."""
    log = STEPS + "Training finished.\n"
    assert verdict(tmp_path, log) is Verdict.HEALTHY
    assert verdict(tmp_path, log, note="It never comes back to the prompt.") is Verdict.UNDECIDED
