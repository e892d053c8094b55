"""The views of an incident: more or less of its material, staged under a neutral name."""

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
from ddx_evals.incidents.wrapped_records import kept_share, wrapped, wrapped_answer
from ddx_tools.investigation.session.capture import IMPORT_SECTION
from ddx_tools.model.files.rank_names import facts_of_name
from ddx_tools.sources.bundle import Bundle, JournalEntry, Manifest, is_bundle
from ddx_tools.sources.packed_bundle import MANIFEST

_LOG_SECTIONS = ("job_log", "nccl_log", IMPORT_SECTION)
_LOG_SUFFIXES = (".log", ".out", ".err")
_OF_ONE_PROCESS = ("stack", "threads", "agent")
_LOST_SHARE = 4
"""One rank in four loses its stacks and records in the partial view."""
_WRAPPED_SHARE = 2
"""Among the others, one in this many has a record that begins later."""


@contextmanager
def staged(incident: Incident, view: View) -> Iterator[Path]:
    """Stage the material of one view for the block, under a path that names neither incident nor split.

    Raises IncidentError if the material has no such view.
    """
    with unpacked(incident) as material, staged_of(material, incident, view) as path:
        yield path


@contextmanager
def unpacked(incident: Incident) -> Iterator[Path]:
    """Unpack all material into one directory for the block, to make several views from: unpacking takes longest."""
    if not is_bundle(incident.material):
        yield incident.material
        return
    with Bundle(incident.material) as bundle:
        yield bundle.directory


@contextmanager
def staged_of(material: Path, incident: Incident, view: View) -> Iterator[Path]:
    """Like `staged`, from unpacked material."""
    with tempfile.TemporaryDirectory(prefix="job-") as scratch:
        yield _cut(material, incident, view, Path(scratch))


def _cut(material: Path, incident: Incident, view: View, scratch: Path) -> Path:
    if view is View.FULL and material.is_dir():
        return Path(shutil.copytree(material, scratch / ("bundle" if is_bundle(material) else "files")))
    if not is_bundle(material):
        raise IncidentError(f"{incident.material}: user-supplied files have no {view} view", "Omit --view.")
    with Bundle(material) as bundle:
        if view is View.LOG_ONLY:
            return _logs(bundle, scratch / "files")
        target = _without_lost(bundle, lost_processes(bundle.manifest, incident.id), scratch / "bundle")
        _wrap_records(target, incident.id)
        return target


def printed(bundle: Bundle) -> dict[str, JournalEntry]:
    """The journal entries with the output of the launcher and the ranks, by path on the host."""
    return {entry.key: entry for entry in bundle.manifest.journal if _is_log(entry)}


def _logs(bundle: Bundle, target: Path) -> Path:
    """The logs as plain files, laid out as on the host."""
    logs = printed(bundle)
    if not logs:
        raise IncidentError(f"{bundle.directory} has no log", "Omit the view log-only.")
    common = os.path.commonpath([PurePosixPath(path).parent for path in logs])
    for path, entry in logs.items():
        file = target / PurePosixPath(path).relative_to(common)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bundle.read(entry.path or ""))
    return target


def _is_log(entry: JournalEntry) -> bool:
    section = entry.path.split("/")[2] if entry.path else ""
    is_read = entry.op in ("look", "read")
    return is_read and section in _LOG_SECTIONS and PurePosixPath(entry.key).suffix in _LOG_SUFFIXES


def lost_processes(manifest: Manifest, seed: str) -> dict[str, int | None]:
    """The pids whose stacks and records the partial view lacks, with their ranks if known."""
    ranks = _ranks_of_agents(manifest)
    stacks = {entry.key.split()[0] for entry in manifest.journal if entry.op == "stack"}
    pids = sorted({*ranks, *stacks}, key=int)
    lost = random.Random(seed).sample(pids, -(-len(pids) // _LOST_SHARE))
    return {pid: ranks.get(pid) for pid in sorted(lost, key=int)}


def wrapped_ranks(manifest: Manifest, seed: str) -> dict[int, float]:
    """The ranks whose records lose their oldest entries in the partial view, with the share that is kept."""
    recorded = {*_ranks_of_agents(manifest).values(), *(rank for e in manifest.journal for rank in [_of_dump(e)])}
    ranks = sorted(rank for rank in recorded if rank is not None)
    chosen = random.Random(f"{seed} wrapped").sample(ranks, -(-len(ranks) // _WRAPPED_SHARE))
    return {rank: kept_share(f"{seed} {rank}") for rank in sorted(chosen)}


def _ranks_of_agents(manifest: Manifest) -> dict[str, int | None]:
    """The rank of each asked agent, by pid."""
    return {pid: rank for entry in manifest.journal if entry.op == "agent" for pid, rank in [_asked(entry)]}


def _of_dump(entry: JournalEntry) -> int | None:
    """The rank of a record file, if its name says so."""
    if entry.op != "read" or not entry.path or entry.path.split("/")[2] != "flight_recorder":
        return None
    return facts_of_name(PurePosixPath(entry.key).name).rank


def _asked(entry: JournalEntry) -> tuple[str, int]:
    asked = json.loads(entry.key)
    return str(asked["pid"]), int(asked["rank"])


def _without_lost(bundle: Bundle, lost: dict[str, int | None], target: Path) -> Path:
    # Both files are our own, and anything written into the copy gets a new file.
    shutil.copytree(bundle.directory, target, copy_function=os.link)
    manifest = bundle.manifest.model_copy(deep=True)
    kept = [entry for entry in manifest.journal if not _is_lost(entry, lost)]
    still = {entry.content or entry.path for entry in kept}
    for file in {entry.content or entry.path for entry in manifest.journal} - still:
        (target / str(file)).unlink(missing_ok=True)
    manifest.journal = kept
    _put(target / MANIFEST, manifest.model_dump_json(by_alias=True, indent=1).encode())
    return target


def _put(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def _is_lost(entry: JournalEntry, lost: dict[str, int | None]) -> bool:
    if entry.op in _OF_ONE_PROCESS:
        return (_asked(entry)[0] if entry.op == "agent" else entry.key.split()[0]) in lost
    rank = _of_dump(entry)
    return rank is not None and rank in lost.values()


def _wrap_records(directory: Path, seed: str) -> None:
    with Bundle(directory) as bundle:
        ranks = wrapped_ranks(bundle.manifest, seed)
        changed: dict[str, bytes] = {}
        for entry in bundle.manifest.journal:
            rank = _asked(entry)[1] if entry.op == "agent" else _of_dump(entry)
            if rank in ranks and entry.path:
                cut = wrapped_answer if entry.op == "agent" else wrapped
                data = cut(bundle.read(entry.path), ranks[rank])
                if entry.content:  # the file may be shared with other answers
                    entry.content = f"raw/wrapped-{len(changed)}.bin"
                changed[entry.content or entry.path] = data
        for name, data in changed.items():
            _put(directory / name, data)
        _put(directory / MANIFEST, bundle.manifest.model_dump_json(by_alias=True, indent=1).encode())
