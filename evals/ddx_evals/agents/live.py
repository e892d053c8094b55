"""The live track: a real lab job goes wrong, and an agent probes it against the clock while it runs."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ddx_evals.agents.answer_files import read_diagnosis, record_of, reports_in, transcript_of
from ddx_evals.agents.command import CommandAgent, handed_in, work
from ddx_evals.agents.prompt import told
from ddx_evals.agents.serving import serving
from ddx_evals.incidents import Truth, View
from ddx_evals.lab import LabRun, Scenario
from ddx_evals.recorder.questions import question
from ddx_evals.recorder.told import truth_of
from ddx_evals.results.run import CaseResult
from ddx_evals.scoring import Replayed, efficiency, quotable_texts, score
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import UnreadableInput, UsageError

LIVE = "live"
"""The name used for the split in results."""
_STRIKES_WITHIN_S = 300.0


def check_live(agent: CommandAgent, scenarios: Sequence[Scenario]) -> None:
    """Raise UsageError if an agent cannot work on live jobs, or if a scenario cannot be examined live."""
    agent.check([])
    if agent.arm.tools.has_material and agent.sealed:
        raise UsageError(
            f"a sealed shell cannot see the job, so the arm {agent.arm} has nothing to examine",
            "Use --arm server, or --unsealed: such runs are not ranked.",
        )
    for scenario in scenarios:
        question(scenario.id)
        if scenario.settles.how == "exited":
            raise UsageError(
                f"the job of {scenario.id} has ended once it goes wrong", "Choose one that hangs or is slow."
            )


def attempt_live(agent: CommandAgent, scenario: Scenario, nproc: int, reports: Path) -> CaseResult:
    """Run a scenario and let an agent try it once. Raises LabError if the job does not get that far."""
    asked = question(scenario.id)
    with LabRun(scenario, nproc, launcher_prefix=[str(Path(sys.executable).with_name("ddx")), "run", "--"]) as run:
        run.start()
        run.wait_struck(timeout_s=_STRIKES_WITHIN_S)
        task = told(asked.prompt, agent.arm, {}, live_pid=run.launcher_pid)
        with handed_in(reports) as collected, serving(collected, agent.arm.tools, run.workdir, None) as connection:
            began_s = time.time()
            work(agent, task, None, connection, collected)
        truth = truth_of(run.truth(), asked)
        replayed = _replayed(run, asked.prompt, reports)
    return _result(truth, scenario, reports, agent.system, began_s, replayed)


def _replayed(run: LabRun, prompt: str, reports: Path) -> Replayed:
    """The text that an answer may quote: the tools' replies, and the job's material at the time of the answer."""
    with tempfile.TemporaryDirectory(prefix="job-") as scratch:
        bundle = Path(scratch, "bundle")
        found = investigate([str(run.launcher_pid)], bundle)
        return Replayed.of(bundle, found, [prompt, *quotable_texts(transcript_of(reports))])


def _result(
    truth: Truth, scenario: Scenario, reports: Path, system: str, began_s: float, replayed: Replayed
) -> CaseResult:
    record = record_of(reports)
    result = CaseResult(
        system=system,
        split=LIVE,
        incident=scenario.id,
        view=View.FULL,
        arm=record.arm if record else "",
        unsealed=record is None or not record.sealed,
        truth=truth.cause,
    )
    try:
        answers = [(file, read_diagnosis(file)) for file in reports_in(reports)]
    except UnreadableInput as error:
        return result.model_copy(update={"error": error.message})
    if not answers:
        return result.model_copy(update={"error": "no diagnosis was reported"})
    scores = [score(truth, View.FULL, diagnosis, replayed) for _, diagnosis in answers]
    right_since = len(scores)
    while right_since and scores[right_since - 1].passed:
        right_since -= 1
    right = answers[right_since:]
    last: Diagnosis = answers[-1][1]
    return result.model_copy(
        update={
            "named": [f"{cause.id} {cause.probability:.2f}" for cause in last.causes[:4]],
            "score": scores[-1],
            "efficiency": efficiency(transcript_of(reports), truth.minimal_probes),
            "right_after_s": round(right[0][0].stat().st_mtime - began_s, 1) if right else None,
        }
    )
