"""A lab run that nobody watches, under `ddx run`: what stood in its output, and whether before its limit struck."""

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

LIMIT_S = 60
_STRUCK_WITHIN_S = 240.0
_EXCEPTION = re.compile(r"Timed out waiting|Application timeout|Connection closed by peer|Watchdog caught")


@dataclass
class Unattended:
    """One run."""

    scenario: Scenario
    answers: list[dict[str, Any]]
    """What `--notify-file` got: the answers that were printed."""
    exit_code: int | None
    """None if it was still running at the end of the time given."""
    wrong: list[str]
    seconds: float
    printed: str
    """The job's output, ours included."""

    def row(self) -> str:
        """A line of a table."""
        first = self.answers[0] if self.answers else None
        said = f"{first['kind']}: {first['diagnosis']['headline'][:70]}" if first else "–"
        row = f"| {self.scenario.row or self.scenario.id} | {len(self.answers)} | {said} | "
        return row + f"{self.exit_code} | {self.seconds:.0f} | {'; '.join(self.wrong) or 'ok'} |"


TABLE_HEAD = "| scenario | answers | the first | exit | s | |\n|---|---|---|---|---|---|"


def run_unattended(scenario: Scenario, nproc: int, limit_s: int | None = LIMIT_S) -> Unattended:
    """Run a scenario that ends in a hang or a crash, to its end, and judge the answer that its output came to hold.

    A hang has to be answered before any rank reports that the limit has expired. `limit_s`: None leaves the job the
    limit that it sets itself, as where a framework makes the process group.
    """
    with tempfile.TemporaryDirectory(prefix="notes-") as scratch:
        notes = Path(scratch) / "notes.jsonl"
        prefix = [ddx_command(), "run", "--notify-file", str(notes), "--"]
        with LabRun(scenario, nproc, launcher_prefix=prefix, limit_s=limit_s) as run:
            run.start()
            run.wait_struck(_STRUCK_WITHIN_S)
            struck = time.monotonic()
            code = _end(run, notes, limit_s or LIMIT_S)
            printed = run.launcher_log.read_text(encoding="utf-8", errors="replace")
            answers = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
            wrong = mistakes(answers[0]["diagnosis"], run.truth(), run.workdir) if answers else ["no answer"]
            wrong += _late(printed) if scenario.settles.how != "exited" else []
            return Unattended(scenario, answers, code, wrong, time.monotonic() - struck, printed)


def _end(run: LabRun, notes: Path, limit_s: float) -> int | None:
    """Wait until the run was answered; without an answer, until its limit and a little more are over."""
    deadline = time.monotonic() + 2 * limit_s
    while time.monotonic() < deadline and not notes.exists() and run.exit_code() is None:
        time.sleep(0.2)
    return run.exit_code()


def _late(printed: str) -> list[str]:
    answered = printed.find("\nddx: DIAGNOSED")
    expired = _EXCEPTION.search(printed)
    return ["answered after the limit"] if expired and not 0 <= answered < expired.start() else []
