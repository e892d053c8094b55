"""Views of an incident: one material, of which more or less is replayed, in a place whose name tells nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ddx_evals.incidents.incident import Incident, IncidentError
from ddx_evals.incidents.truth import View
from ddx_tools.bundle import MANIFEST, Bundle, JournalEntry, Manifest, is_bundle
from ddx_tools.formats.fr_origin import facts_of_name
from ddx_tools.investigate import IMPORT_SECTION

_LOG_SECTIONS = ("job_log", "nccl_log", IMPORT_SECTION)
_LOG_SUFFIXES = (".log", ".out", ".err")
_OF_ONE_PROCESS = ("stack", "threads", "agent")
_LOST_SHARE = 4
"""One rank in four loses its stacks and records in the partial view."""


@contextmanager
def staged(incident: Incident, view: View) -> Iterator[Path]:
    """The material of one view, for as long as the block lasts, under a path that names neither incident nor split.

    Raises IncidentError if the material has no such view.
    """
    with tempfile.TemporaryDirectory(prefix="job-") as scratch:
        yield _cut(incident, view, Path(scratch))


def _cut(incident: Incident, view: View, scratch: Path) -> Path:
    material = incident.material
    if view is View.FULL:
        if material.is_file():
            return Path(shutil.copy(material, scratch))
        return Path(shutil.copytree(material, scratch / "files"))
    if not is_bundle(material):
        raise IncidentError(f"{material}: files that somebody brought have no {view} view", "Leave out --view.")
    with Bundle(material) as bundle:
        if view is View.LOG_ONLY:
            return _logs(bundle, scratch / "files")
        return _without_lost(bundle, lost_processes(bundle.manifest, incident.id), scratch / "bundle")


def printed(bundle: Bundle) -> dict[str, JournalEntry]:
    """Where a bundle holds what the launcher and the ranks printed, by path on the host."""
    return {entry.key: entry for entry in bundle.manifest.journal if _is_log(entry)}


def _logs(bundle: Bundle, target: Path) -> Path:
    """The logs as plain files, laid out as on the host."""
    logs = printed(bundle)
    if not logs:
        raise IncidentError(f"{bundle.directory} holds no log", "Leave out the view log-only.")
    common = os.path.commonpath([PurePosixPath(path).parent for path in logs])
    for path, entry in logs.items():
        file = target / PurePosixPath(path).relative_to(common)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bundle.read(entry.path or ""))
    return target


def _is_log(entry: JournalEntry) -> bool:
    section = entry.path.split("/")[2] if entry.path else ""
    return entry.op == "read" and section in _LOG_SECTIONS and PurePosixPath(entry.key).suffix in _LOG_SUFFIXES


def lost_processes(manifest: Manifest, seed: str) -> dict[str, int | None]:
    """The pids whose stacks and records the partial view lacks, each with its rank if that is known."""
    ranks = {pid: rank for entry in manifest.journal if entry.op == "agent" for pid, rank in [_asked(entry)]}
    stacks = {entry.key.split()[0] for entry in manifest.journal if entry.op == "stack"}
    pids = sorted({*ranks, *stacks}, key=int)
    lost = random.Random(seed).sample(pids, -(-len(pids) // _LOST_SHARE))
    return {pid: ranks.get(pid) for pid in sorted(lost, key=int)}


def _asked(entry: JournalEntry) -> tuple[str, int]:
    asked = json.loads(entry.key)
    return str(asked["pid"]), int(asked["rank"])


def _without_lost(bundle: Bundle, lost: dict[str, int | None], target: Path) -> Path:
    shutil.copytree(bundle.directory, target)
    manifest = bundle.manifest.model_copy(deep=True)
    kept = [entry for entry in manifest.journal if not _is_lost(entry, lost)]
    for entry in manifest.journal:
        if entry.path and entry not in kept:
            (target / entry.path).unlink(missing_ok=True)
    manifest.journal = kept
    (target / MANIFEST).write_text(manifest.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
    return target


def _is_lost(entry: JournalEntry, lost: dict[str, int | None]) -> bool:
    if entry.op in _OF_ONE_PROCESS:
        return (_asked(entry)[0] if entry.op == "agent" else entry.key.split()[0]) in lost
    if entry.op == "read" and entry.path and entry.path.split("/")[2] == "flight_recorder":
        rank = facts_of_name(PurePosixPath(entry.key).name).rank
        return rank is not None and rank in lost.values()
    return False
