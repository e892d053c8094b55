"""Makes a large incident: the material as a bundle, and the truth beside it, byte for byte reproducible."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ddx_evals.incidents import CANARY, Culprits, Provenance, Truth, TruthLayout, View
from ddx_evals.incidents.incident import BUNDLE, TRUTH, Incident, IncidentError, load_incident, truth_text
from ddx_evals.incidents.validation import problems
from ddx_evals.large.declaration import Declaration
from ddx_evals.large.material import LargeMaterial, material
from ddx_evals.scores.hardness import measured
from ddx_evals.simulator.running import START_NS
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.investigation.session.capture import RecordingHosts, probe_run
from ddx_tools.investigation.session.plan import file_plan
from ddx_tools.model.diagnosis import Verdict
from ddx_tools.sources.bundle import BundleWriter, Manifest
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.packed_bundle import MANIFEST, pack

_COLLECTED_IN = "/data/collected/48213"
_TAKEN_S = START_NS // 10**9 + 7200
"""The time at which the files were collected."""


def simulate_incident(declared: Declaration, out: Path, progress: Callable[[str], None] = lambda _: None) -> Incident:
    """Make the incident in `out`. Raises IncidentError (and keeps the directory for inspection) if it is not usable."""
    target = out / declared.incident
    if target.exists():
        raise IncidentError(f"{target} exists", "Remove it to make it again.")
    progress(f"simulating {declared.shape.ranks} ranks")
    made = material(declared)
    target.mkdir(parents=True)
    progress("packing")
    bundle(made.files, target / BUNDLE)
    told = _truth(declared, made)
    told = told.model_copy(update={"hardness": measured(Incident(target, told)).hardness})
    (target / TRUTH).write_text(truth_text(told), encoding="utf-8")
    incident = load_incident(target)
    if wrong := problems(incident):
        raise IncidentError("\n".join([f"{target} is not usable:", *wrong]), "Inspect it and correct its declaration.")
    return incident


def bundle(files: Mapping[str, bytes], target: Path) -> None:
    """Pack collected files as a bundle; every file is in it once."""
    with tempfile.TemporaryDirectory(prefix="ddx-large-") as scratch:
        collected, directory = Path(scratch) / "collected", Path(scratch) / "bundle"
        for name, data in files.items():
            (collected / name).parent.mkdir(parents=True, exist_ok=True)
            (collected / name).write_bytes(data)
            os.utime(collected / name, (_TAKEN_S, _TAKEN_S))
        _capture(str(collected), directory)
        _settle(directory, str(collected))
        pack(directory, target)


def _capture(collected: str, directory: Path) -> None:
    """Capture a directory as an investigation would, without the conclusions."""
    writer = BundleWriter(directory, [collected])
    hosts = RecordingHosts(writer, LocalHost)
    for step in file_plan([collected]):
        raw = step.probe.capture(hosts.of(step), step.probe.args.model_validate(step.args))
        writer.manifest.probes.append(probe_run(step, raw))
    writer.close()


def _settle(directory: Path, collected: str) -> None:
    """Make a bundle depend only on the files: fix paths and times, and keep one copy of repeated reads."""
    file = directory / MANIFEST
    manifest = Manifest.model_validate_json(file.read_text("utf-8").replace(collected, _COLLECTED_IN))
    created = dt.datetime.fromtimestamp(_TAKEN_S, dt.UTC)
    manifest.created = created.isoformat(timespec="seconds")
    was_slug, slug = (path.strip("/").replace("/", "_") for path in (collected, _COLLECTED_IN))
    for name in {entry.content for entry in manifest.journal if entry.content}:
        answer = directory / name
        data = answer.read_bytes().replace(collected.encode(), _COLLECTED_IN.encode())
        settled = f"raw/{hashlib.sha256(data).hexdigest()[:32]}{answer.suffix}"
        answer.replace(directory / settled)
        (directory / settled).write_bytes(data)
        for entry in manifest.journal:
            entry.content = settled if entry.content == name else entry.content
    for entry in manifest.journal:
        entry.at = float(_TAKEN_S)
        if entry.path:
            was_mark, mark = _mark(entry.key.replace(_COLLECTED_IN, collected)), _mark(entry.key)
            entry.path = entry.path.replace(was_mark, mark).replace(was_slug, slug)
    file.write_text(manifest.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
    for each in (directory, *directory.rglob("*")):
        os.utime(each, (_TAKEN_S, _TAKEN_S))


def _mark(key: str) -> str:
    """The part that makes the name of an answer unique (`ddx_tools.sources.bundle`)."""
    return f"{zlib.crc32(key.encode()):08x}"


def _truth(declared: Declaration, made: LargeMaterial) -> Truth:
    asked = declared.answer
    diagnosed = asked.full.verdict is Verdict.DIAGNOSED
    page = load_playbooks().causes.get(asked.cause)
    blamed = asked.culprits if asked.culprits is not None else made.culprits if diagnosed else Culprits()
    return Truth(
        id=declared.incident,
        prompt=asked.prompt,
        cause=asked.cause,
        accept=asked.accept,
        category=page.category if page else "",
        culprits=blamed,
        layout=TruthLayout(hosts=made.hosts, group=made.group),
        innocent=asked.innocent,
        evidence=asked.evidence,
        views={View.FULL: asked.full, View.LOG_ONLY: asked.log_only},
        deciding_fact=asked.deciding_fact,
        deciding_words=asked.deciding_words,
        minimal_probes=asked.minimal_probes,
        fix_class=asked.fix_class,
        provenance=Provenance(
            kind="simulated",
            scenario=declared.id,
            command=f"ddx lab simulate {declared.id}",
            seed=declared.seed,
        ),
        canary=CANARY,
    )
