"""Records a lab scenario as an incident: runs it, saves all raw material, and writes the truth separately."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ddx_evals.baselines.grep import grep
from ddx_evals.incidents import Truth, TruthLayout, View
from ddx_evals.incidents.incident import BUNDLE, TRUTH, Incident, IncidentError, load_incident, truth_text
from ddx_evals.incidents.truth import Hardness
from ddx_evals.incidents.validation import problems
from ddx_evals.incidents.views import lost_processes
from ddx_evals.lab import LabRun, Scenario
from ddx_evals.lab.launching import ranks_of
from ddx_evals.recorder.beforehand import truth_beforehand
from ddx_evals.recorder.hosts import capture_run
from ddx_evals.recorder.neutral_paths import make_neutral, own_paths
from ddx_evals.results.suite import run_suite
from ddx_evals.results.summary import GREP, easy_cases
from ddx_tools.sources.bundle import Manifest
from ddx_tools.sources.host import UNKNOWN_HOST
from ddx_tools.sources.packed_bundle import pack

_STRIKES_WITHIN_S = 300.0
_TRUTH_OF_REFUSED = "refused.yaml"
"""Not `truth.yaml`, which would make the directory an incident."""


def record(
    scenario: Scenario, nproc: int, out: Path, incident_id: str, progress: Callable[[str], None] = lambda _: None
) -> Incident:
    """Run a scenario and save it as the incident `out`/`incident_id`.

    Raises LabError if the job does not get that far, IncidentError if the truth is unfit before the run or the result
    is not usable (see `keep`), UsageError if the scenario has no question.
    """
    target = out / incident_id
    if target.exists():
        raise IncidentError(f"{target} exists", "Remove it to record it again, or use another --id.")
    told = truth_beforehand(scenario, nproc, out, incident_id)
    with tempfile.TemporaryDirectory(prefix="ddx-record-") as scratch:
        made = Path(scratch) / incident_id
        made.mkdir()
        # Quiet, since an answer in the log would be recorded with it.
        prefix = [str(Path(sys.executable).with_name("ddx")), "run", "--quiet", "--"]
        with LabRun(scenario, nproc, launcher_prefix=prefix) as run:
            progress(f"running {scenario.id}")
            run.start()
            run.wait_struck(timeout_s=_STRIKES_WITHIN_S)
            progress("capturing")
            directory = Path(scratch) / "bundle"
            manifest = capture_run(run, directory)
            make_neutral(directory, own_paths())
            pack(directory, made / BUNDLE)
        told = _with_recorded(told, scenario, nproc, manifest)
        if _grep_solves(Incident(made, told)):
            told = told.model_copy(update={"hardness": Hardness(tag="easy", measured_by="grep")})
        (made / TRUTH).write_text(truth_text(told), encoding="utf-8")
        return keep(made, target)


def keep(made: Path, target: Path) -> Incident:
    """Move an incident to its place in the split, if it is usable.

    Otherwise raises IncidentError and leaves it beside the split, where no evaluation uses it.
    """
    wrong = problems(load_incident(made))
    if not wrong:
        target.parent.mkdir(parents=True, exist_ok=True)
        return load_incident(Path(shutil.move(made, target)))
    refused = target.parent.resolve().parent / f"{target.name}.refused"
    shutil.rmtree(refused, ignore_errors=True)
    shutil.move(made, refused)
    (refused / TRUTH).rename(refused / _TRUTH_OF_REFUSED)
    listed = "\n".join(wrong)
    raise IncidentError(
        f"the recording is not usable:\n{listed}",
        f"It is in {refused} for inspection; fix the scenario or the question and record it again.",
    )


def _grep_solves(incident: Incident) -> bool:
    results = run_suite([incident], {GREP: grep}, [View.FULL])
    return bool(easy_cases(results))


def _with_recorded(told: Truth, scenario: Scenario, nproc: int, manifest: Manifest) -> Truth:
    views = dict(told.views)
    lost = lost_processes(manifest, told.id)
    culprits = frozenset().union(*told.culprits.rank_sets)
    if lost and None not in lost.values() and not culprits & set(lost.values()):
        views[View.PARTIAL] = views[View.FULL]
    layout = TruthLayout(hosts=_ranks_by_host(scenario, nproc, manifest))
    return told.model_copy(update={"layout": layout, "views": views})


def _ranks_by_host(scenario: Scenario, nproc: int, manifest: Manifest) -> dict[str, tuple[int, ...]]:
    if scenario.hosts:
        return ranks_of(scenario.hosts, nproc)
    # The remains of an ended job belong to no known host.
    known = [host for host in manifest.hosts if host != UNKNOWN_HOST]
    return {host: tuple(range(nproc)) for host in known[:1]}
