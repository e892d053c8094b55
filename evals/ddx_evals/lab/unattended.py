"""An unattended lab run under `ddx run`: which answer its output contains, and whether it came before the timeout."""

from __future__ import annotations

import json
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddx_evals.lab.outcome import ddx_command, mistakes
from ddx_evals.lab.run import LabRun
from ddx_evals.lab.scenario import Scenario
from ddx_tools.model.diagnosis import Diagnosis

LIMIT_S = 60
_STRUCK_WITHIN_S = 240.0
_EXCEPTION = re.compile(r"Timed out waiting|Application timeout|Connection closed by peer|Watchdog caught")


@dataclass
class Unattended:
    """The outcome of one unattended run."""

    scenario: Scenario
    answers: list[dict[str, Any]]
    """The printed answers, from `--notify-file`."""
    exit_code: int | None
    """None if it was still running when the time was up."""
    wrong: list[str]
    seconds: float
    printed: str
    """The job's output, including ours."""

    def row(self) -> str:
        """The run as a table row."""
        first = _told_first(self.answers) if self.answers else None
        said = f"{first['kind']}: {first['diagnosis']['headline'][:70]}" if first else "–"
        row = f"| {self.scenario.id} | {len(self.answers)} | {said} | "
        return row + f"{self.exit_code} | {self.seconds:.0f} | {'; '.join(self.wrong) or 'ok'} |"


TABLE_HEAD = "| scenario | answers | the first | exit | s | |\n|---|---|---|---|---|---|"


def hangs_or_crashes(scenario: Scenario) -> bool:
    """Whether the job stops making progress, so that ddx must report it unasked.

    u1 is excluded: it is about unreadable ranks, but under `ddx run` their agents can be read.
    """
    return scenario.settles.how != "flowing" and "healthy" not in scenario.truth.verdicts and scenario.row != "u1"


def run_unattended(scenario: Scenario, nproc: int, limit_s: int = LIMIT_S) -> Unattended:
    """Run a scenario that ends in a hang or a crash, and judge the answer in its output.

    A hang must be answered before any rank reports that the timeout has expired.
    """
    with tempfile.TemporaryDirectory(prefix="notes-") as scratch:
        notes = Path(scratch) / "notes.jsonl"
        # Before there is a process group, this is the only timeout.
        prefix = [ddx_command(), "run", "--stall-after", str(limit_s), "--notify-file", str(notes), "--"]
        with LabRun(scenario, nproc, launcher_prefix=prefix, limit_s=limit_s) as run:
            started = time.monotonic()
            run.start()
            run.wait_struck(_STRUCK_WITHIN_S, may_exit=True)
            struck = time.monotonic()
            # An exception before the timeout can have expired is a crash, after which other launchers may still run.
            crashed = struck - started < limit_s and _EXCEPTION.search(run.printed())
            hangs = run.exit_code() is None and not crashed
            code = _end(run, notes, limit_s)
            printed = run.printed()
            answers = _answers(notes)
            unanswered = [] if "undecided" in scenario.truth.verdicts else ["no answer"]
            wrong = _mistakes(_told_first(answers)["diagnosis"], run) if answers else unanswered
            wrong += _late(printed) if hangs and scenario.settles.how != "exited" else []
            return Unattended(scenario, answers, code, wrong, time.monotonic() - struck, printed)


def run_undisturbed(scenario: Scenario, nproc: int, seconds: float, limit_s: int = LIMIT_S) -> list[str]:
    """Run a healthy scenario for `seconds`, or to completion; return the lines that ddx added to its output."""
    with LabRun(scenario, nproc, launcher_prefix=[ddx_command(), "run", "--"], limit_s=limit_s) as run:
        run.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and run.exit_code() is None:
            time.sleep(1.0)
        return [line for line in run.printed().splitlines() if line.startswith("ddx: ")]


def _told_first(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The first answer that names a cause, on whichever host; otherwise the first answer."""
    return next(filter(_names_a_cause, answers), answers[0])


def _names_a_cause(answer: dict[str, Any]) -> bool:
    return bool(answer["diagnosis"]["verdict"] == "diagnosed")


def _end(run: LabRun, notes: Path, limit_s: float) -> int | None:
    """Wait until a cause is named, the job ends, or its timeout and a little more have passed."""
    deadline = time.monotonic() + 2 * limit_s
    while time.monotonic() < deadline and not any(map(_names_a_cause, _answers(notes))) and run.exit_code() is None:
        time.sleep(0.2)
    return run.exit_code()


def _answers(notes: Path) -> list[dict[str, Any]]:
    """The answers in `--notify-file` so far, complete lines only."""
    written = notes.read_text(encoding="utf-8") if notes.exists() else ""
    return [json.loads(line) for line in written.splitlines(keepends=True) if line.endswith("\n")]


def _mistakes(printed: dict[str, Any], run: LabRun) -> list[str]:
    diagnosis = Diagnosis.model_validate(printed).model_dump(mode="json", by_alias=True)
    return mistakes(diagnosis, run.truth(), run.workdir)


def _late(printed: str) -> list[str]:
    answered = printed.find("\nddx: DIAGNOSED")
    expired = _EXCEPTION.search(printed)
    return ["answered after the timeout"] if expired and not 0 <= answered < expired.start() else []
