"""Compares `ddx why` on a lab run with the run's truth.

Used by the scenario tests and by `python -m ddx_evals.lab table`. `ddx` is run as a separate command, as a user would
run it, and only its JSON is judged.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddx_evals.lab.run import LabRun
from ddx_evals.lab.scenario import Scenario
from ddx_evals.lab.truth import RunTruth
from ddx_tools.model.diagnosis import Diagnosis, rank_list

Way = Literal["stacks", "records", "logs", "moments"]
"""The source of evidence: stacks of the live job; the live job under `ddx run`; what is left after its end; records of
a live job, taken at a different moment on each rank."""


def answer_limit_s(nproc: int) -> float:
    """The maximum seconds from command to answer for `nproc` ranks on 2 cores."""
    return 10.0 if nproc <= 4 else 15.0


_NO_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
_MOMENTS_APART_S = 1.5


@dataclass
class Outcome:
    """One answer and its mistakes, if any."""

    scenario: Scenario
    nproc: int
    way: Way
    seconds: float
    diagnosis: dict[str, Any]
    wrong: list[str] = field(default_factory=list)

    def row(self) -> str:
        """The outcome as a table row, which also says if the answer took too long."""
        limit_s = answer_limit_s(self.nproc)
        late = [f"over {limit_s:g} s"] if self.seconds > limit_s else []
        first = self.diagnosis["causes"][0] if self.diagnosis["causes"] else {"id": "–", "probability": 0}
        culprits = self.diagnosis["culprits"]
        places: list[dict[str, Any]] = culprits["locations"]
        where = f"{Path(places[0]['file']).name}:{places[0]['line']}" if places else "–"
        ranks = ",".join(map(str, culprits["ranks"])) or "–"
        return (
            f"| {self.scenario.id} | {self.nproc} | {self.way} | {self.diagnosis['verdict']} | {first['id']} "
            f"{first['probability']:.2f} | {ranks} | {where} | {self.seconds:.1f} | "
            f"{'; '.join([*self.wrong, *late]) or 'ok'} |"
        )


TABLE_HEAD = "| scenario | N | from | verdict | cause | culprits | place | s | |\n|---|---|---|---|---|---|---|---|---|"


def ways(scenario: Scenario) -> list[Way]:
    """The sources from which a scenario must be answered; the first must suffice by itself."""
    if scenario.settles.how == "exited":
        return ["logs"]
    if scenario.row == "h3":
        return ["moments"]
    named: dict[str, Way] = {"S": "stacks", "F": "records"}
    return [way for letter, way in named.items() if letter in scenario.evidence]


def start_run(scenario: Scenario, nproc: int, way: Way, *, step: int | None = None) -> LabRun:
    """Prepare a run for the given source of evidence; it is not started yet."""
    recorded = way in ("records", "moments") or (way == "logs" and "F" in scenario.evidence)
    prefix = [ddx_command(), "run", "--quiet", "--"] if recorded else []
    if _hides_ranks(scenario):
        prefix = [*_NO_PTRACE, *prefix]
    return LabRun(scenario, nproc, launcher_prefix=prefix, step=step)


def ask(run: LabRun, way: Way, truth: RunTruth | None = None) -> Outcome:
    """Run `ddx why` on a run, compare the answer with the truth, and replay the bundle that it saved.

    `truth` defaults to the run's own; a healthy phase has a separate truth.
    """
    target = _target(run, way)
    with tempfile.TemporaryDirectory(prefix="ddx-lab-") as scratch:
        bundle = Path(scratch) / "bundle"
        started = time.monotonic()
        live = _why([*target, "--save", str(bundle)], as_unprivileged=_hides_ranks(run.scenario))
        seconds = time.monotonic() - started
        replayed = _why([str(bundle)])
    outcome = Outcome(
        run.scenario,
        run.nproc,
        way,
        seconds,
        Diagnosis.model_validate_json(live).model_dump(mode="json", by_alias=True),
    )
    outcome.wrong = mistakes(outcome.diagnosis, truth or run.truth(), run.workdir)
    if _judged(live) != _judged(replayed):
        outcome.wrong.append("the replayed bundle gives another diagnosis")
    return outcome


def _judged(answer: str) -> dict[str, Any]:
    """An answer without the next check, which differs for a bundle: its job cannot be checked any more."""
    return {name: value for name, value in json.loads(answer).items() if name != "next_check"}


HEALTHY = RunTruth(verdicts=("healthy",), causes=(), culprits=(), places=())


def _hides_ranks(scenario: Scenario) -> bool:
    """Whether ranks are hidden from ddx: root, and the job, must drop a capability to be restricted like a user."""
    return scenario.row == "u1" and os.geteuid() == 0


def ddx_command() -> str:
    """The path of this environment's `ddx`."""
    beside = Path(sys.executable).with_name("ddx")
    return str(beside) if beside.exists() else (shutil.which("ddx") or "ddx")


def _why(arguments: Sequence[str], *, as_unprivileged: bool = False) -> str:
    argv = [*(_NO_PTRACE if as_unprivileged else []), ddx_command(), "why", "--json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if not done.stdout.startswith("{"):
        raise AssertionError(f"{' '.join(argv)} said: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _target(run: LabRun, way: Way) -> list[str]:
    if way == "logs":
        runs = sorted(run.workdir.glob("ddx-runs/*"))
        return [str(runs[-1])] if runs else [str(run.launcher_log)]
    if way == "moments":
        return [str(_records_of_different_moments(run))]
    return [str(run.launcher_pid)]


def _records_of_different_moments(run: LabRun) -> Path:
    """Make every rank write its records, each a few steps after the previous one; return their directory."""
    from ddx_tools.sources.hosts.rank_agent import ask as ask_agent
    from ddx_tools.sources.hosts.rank_agent import list_agents

    run_dir = max(run.workdir.glob("ddx-runs/*"))
    taken = run.workdir / "records"
    taken.mkdir()
    for address in list_agents(str(run_dir)):
        ask_agent(str(run_dir), address.rank, address.pid, {"op": "save", "label": "moment", "reason": "asked"}, 10.0)
        time.sleep(_MOMENTS_APART_S)
    for file in run_dir.glob("ranks/*.moment.*"):
        shutil.copy(file, taken)
    return taken


def mistakes(diagnosis: dict[str, Any], truth: RunTruth, workdir: Path) -> list[str]:
    """The mistakes of an answer: verdict, cause, culprits, place."""
    wrong = []
    if diagnosis["verdict"] not in truth.verdicts:
        wrong.append(f"verdict {diagnosis['verdict']}, not {'/'.join(truth.verdicts)}")
    culprits = frozenset(diagnosis["culprits"]["ranks"])
    # If something other than a rank is to blame, naming the ranks that died first is not wrong.
    if (truth.culprits or not truth.causes) and culprits not in (truth.culprits or (frozenset(),)):
        wrong.append(f"culprits {sorted(culprits)}, not {[sorted(c) for c in truth.culprits]}")
    question = (diagnosis["next_check"] or {}).get("question", "")
    if truth.asks_about and rank_list(set(truth.asks_about)) not in question:
        wrong.append(f"the next check does not ask about {rank_list(set(truth.asks_about))}: {question}")
    if not truth.causes:
        return wrong
    first = diagnosis["causes"][0]["id"] if diagnosis["causes"] else None
    if first not in truth.causes:
        wrong.append(f"cause {first}, not {'/'.join(truth.causes)}")
    named = {(Path(place["file"]), place["line"]) for place in diagnosis["culprits"]["locations"]}
    accepted = {(workdir / place.file, place.line) for place in truth.places}
    if accepted and not named & accepted:
        wrong.append(
            f"place {sorted((f.name, n) for f, n in named)}, not {sorted((f.name, n) for f, n in accepted)[:4]}"
        )
    return wrong
