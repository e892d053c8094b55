"""Runs a single probe on a live job, on the user's files, or on a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddx_tools.investigation.exports import refuse_unwritable
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import (
    absolute_target,
    bundle_of,
    capture_steps,
    investigate_hosts,
    paths_and_pids,
    replay_steps,
    this_machine,
)
from ddx_tools.investigation.session.capture import Machine, Progress
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.show.origins import origin_of
from ddx_tools.model.diagnosis import NextProbe, ProbeResult, ProbeStatus
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.probes.declaration import Probe
from ddx_tools.sources.bundle import Manifest

if TYPE_CHECKING:
    from ddx_tools.sources.cluster.targets import Reach


def run_probe(
    step: Step,
    progress: Progress = lambda _: None,
    save: Path | None = None,
    *,
    machine: Machine = this_machine,
    reach: Reach | None = None,
) -> tuple[ProbeResult, Investigation]:
    """Run one probe live on this host, on many hosts (`reach`), or on a bundle, and return its result."""
    target = step.args["target"]
    for out in step.exports.values():
        refuse_unwritable(out)

    def as_asked(manifest: Manifest) -> list[tuple[str, Step]]:
        """Return (host name, step) for each recorded run of this probe in a bundle, with its arguments.

        Arguments that the user gave now take precedence. A probe without a recorded run is planned for every host of
        the bundle.
        """
        runs = [(run.host, run.args) for run in manifest.probes if run.probe == step.probe.id]
        asked = runs or [(name, {"target": manifest.target}) for name in manifest.hosts]
        return [(name, replace(step, args={**step.args, **args, **_told(step)})) for name, args in asked]

    bundle = bundle_of(target)
    if reach:
        found = investigate_hosts(reach, [step], target, save, progress)
    elif bundle:
        found = replay_steps(bundle, as_asked, progress)
    else:
        absolute = absolute_target(target)
        found = capture_steps(_parted(step, absolute), absolute, save, progress, machine)
    if not found.results:
        raise UnreadableInput(f"{target[0]} names no host: there is nothing to read")
    result = _as_one(found.results) if reach or not bundle else found.results[0]
    result.problems[:0] = found.unanswered
    if found.lacking:
        result.problems += [f"{gap.what}: {gap.why_it_matters}" for gap in found.lacking]
        result.status = ProbeStatus.PARTIAL if result.status is ProbeStatus.OK else result.status
    cited = {evidence.source for finding in result.findings for evidence in finding.evidence}
    result.origins = {source: origin for source in sorted(cited) if (origin := origin_of(source, found.origins))}
    result.next = _next(found, step.probe)
    return result, found


def _as_one(results: Sequence[ProbeResult]) -> ProbeResult:
    """Merge a probe's results on the live job and on the user's files."""
    first, *others = results
    for other in others:
        first.searched += other.searched
        first.problems += other.problems
        if first.status in (ProbeStatus.NO_DATA, ProbeStatus.NOT_RECORDED):
            first.status = other.status
    return first


def _parted(step: Step, target: Sequence[str]) -> list[Step]:
    """Split a step about pids and files in two: pids go to this machine, the user's files to no host."""
    paths, pids = paths_and_pids(target)
    if not (paths and pids):
        return [replace(step, args={**step.args, "target": list(target)})]
    about_files = {name: value for name, value in step.args.items() if name in step.probe.about_files}
    live = {name: value for name, value in step.args.items() if name not in about_files}
    return [
        replace(step, args={**live, "target": pids}),
        replace(step, args={**about_files, "target": paths}, exports={}),
    ]


def _told(step: Step) -> dict[str, Any]:
    """The arguments, apart from the target, that differ from their defaults."""
    fields = step.probe.args.model_fields
    return {
        name: value
        for name, value in step.args.items()
        if name != "target" and value != fields[name].get_default(call_default_factory=True)
    }


def _next(found: Investigation, done: Probe[Any]) -> list[NextProbe]:
    """The next probe to run after this one, if the playbooks know one."""
    check = found.judge().next_check if found.findings else None
    if check is None or check.probe in ("ask", done.id):
        return []
    return [NextProbe(probe=check.probe, args=check.args, why=check.question)]
