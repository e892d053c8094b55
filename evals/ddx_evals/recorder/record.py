"""Records a lab scenario as an incident: runs it, keeps all raw material, and writes the truth apart from it."""

from __future__ import annotations

import contextlib
import datetime as dt
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddx_evals.baselines.grep import grep
from ddx_evals.incidents import CANARY, Layout, Provenance, Truth, View
from ddx_evals.incidents.incident import BUNDLE, TRUTH, Incident, IncidentError, load_incident, truth_text
from ddx_evals.incidents.truth import Hardness
from ddx_evals.incidents.validation import problems
from ddx_evals.incidents.views import lost_processes
from ddx_evals.lab import LabRun, Scenario
from ddx_evals.lab.launching import ranks_of
from ddx_evals.lab.truth import Truth as LabTruth
from ddx_evals.recorder.hosts import capture_run
from ddx_evals.recorder.neutral_paths import make_neutral, own_paths
from ddx_evals.recorder.questions import Question, question
from ddx_evals.recorder.told import truth_of
from ddx_evals.suite import run_suite
from ddx_evals.summary import GREP, easy_cases
from ddx_tools.bundle import Manifest, pack
from ddx_tools.playbook import load_playbooks
from ddx_tools.probe import UNKNOWN_HOST

_VERSIONS_OF = {"torch": "torch", "ddx": "debug-distributed"}
"""Distributions whose versions a truth names, beside those that its job is built on."""
_STRIKES_WITHIN_S = 300.0


def record(
    scenario: Scenario, nproc: int, out: Path, incident_id: str, progress: Callable[[str], None] = lambda _: None
) -> Incident:
    """Run a scenario and keep it as the incident `out`/`incident_id`.

    Raises LabError if the job does not get there, IncidentError (and leaves the directory to look at) if what came
    of it may not be used, UsageError if nobody has written the scenario's question.
    """
    asked = question(scenario.id)
    target = out / incident_id
    if target.exists():
        raise IncidentError(f"{target} exists", "Remove it to record it again, or name another --id.")
    with LabRun(scenario, nproc, launcher_prefix=[str(Path(sys.executable).with_name("ddx")), "run", "--"]) as run:
        progress(f"running {scenario.id}")
        run.start()
        run.wait_struck(timeout_s=_STRIKES_WITHIN_S)
        progress("capturing")
        truth = run.truth()
        with tempfile.TemporaryDirectory(prefix="ddx-record-") as scratch:
            directory = Path(scratch) / "bundle"
            manifest = capture_run(run, directory)
            make_neutral(directory, own_paths())
            target.mkdir(parents=True)
            pack(directory, target / BUNDLE)
    told = _truth(scenario, nproc, incident_id, asked, truth, manifest, out)
    if _grep_solves(Incident(target, told)):
        told = told.model_copy(update={"hardness": Hardness(tag="easy", measured_by="grep")})
    (target / TRUTH).write_text(truth_text(told), encoding="utf-8")
    incident = load_incident(target)
    if wrong := problems(incident):
        listed = "\n".join(wrong)
        raise IncidentError(f"{target} may not be used:\n{listed}", "Look at it, remove it, record it again.")
    return incident


def _grep_solves(incident: Incident) -> bool:
    results = run_suite([incident], {GREP: grep}, [View.FULL])
    return bool(easy_cases(results))


def _truth(
    scenario: Scenario,
    nproc: int,
    incident_id: str,
    asked: Question,
    seen: LabTruth,
    manifest: Manifest,
    out: Path,
) -> Truth:
    told = truth_of(seen, asked)
    page = load_playbooks().causes.get(told.cause)
    views = dict(told.views)
    if asked.log_only:
        views[View.LOG_ONLY] = asked.log_only
    lost = lost_processes(manifest, incident_id)
    culprits = frozenset().union(*seen.culprits)
    if lost and None not in lost.values() and not culprits & set(lost.values()):
        views[View.PARTIAL] = views[View.FULL]
    provenance = Provenance(
        kind="recorded",
        scenario=scenario.id,
        command=f"ddx lab record {scenario.id} --nproc {nproc} --id {incident_id} --out {_shown(out)}",
        versions=_versions(scenario),
        date=dt.datetime.now(dt.UTC).date(),
    )
    return told.model_copy(
        update={
            "id": incident_id,
            "category": page.category if page else "",
            "layout": Layout(hosts=_ranks_by_host(scenario, nproc, manifest)),
            "views": views,
            "provenance": provenance,
            "canary": CANARY,
        }
    )


def _ranks_by_host(scenario: Scenario, nproc: int, manifest: Manifest) -> dict[str, tuple[int, ...]]:
    if scenario.hosts:
        return ranks_of(scenario.hosts, nproc)
    # What is left of a job that ended is of no host that one knows.
    known = [host for host in manifest.hosts if host != UNKNOWN_HOST]
    return {host: tuple(range(nproc)) for host in known[:1]}


def _shown(out: Path) -> str:
    """The directory as one names it from the top of the checkout, if it lies in there."""
    checkout = Path(__file__).resolve().parents[3]
    resolved = out.resolve()
    return str(resolved.relative_to(checkout)) if resolved.is_relative_to(checkout) else "DIRECTORY"


def _versions(scenario: Scenario) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, distribution in [*_VERSIONS_OF.items(), *((module, module) for module in scenario.needs_modules)]:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(distribution)
    return found
