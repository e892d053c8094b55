"""Merges several bundles of one job into one: those of its hosts, with everything that was asked of each."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.bundle import Bundle, JournalEntry, Manifest, ProbeRun
from ddx_tools.sources.host import UNKNOWN_HOST
from ddx_tools.sources.packed_bundle import MANIFEST

_OCCURRENCE = re.compile(r"-\d+(\.\w+)$")


@dataclass(frozen=True)
class BundlePart:
    """A bundle to merge."""

    directory: Path
    replayed: bool = True
    """Whether its probes are replayed when the merged bundle is diagnosed; otherwise it only adds answers."""
    host: str | None = None
    """Another name for its host, if two hosts have the same name."""


def merge(parts: Sequence[BundlePart], target: Path, asked_hosts: Sequence[AskedHost] = ()) -> Manifest:
    """Write the bundle `target` (a new directory) with the answers of all parts, in order.

    If two parts asked the same host the same question, the merged bundle has both answers, one after the other.
    """
    whole: Manifest | None = None
    asked: Counter[tuple[str, str, str, str]] = Counter()
    for part in parts:
        with Bundle(part.directory) as bundle:
            manifest = _renamed(bundle.manifest, part.host)
            if whole is None:
                whole = manifest.model_copy(update={"probes": [], "journal": [], "hosts": []}, deep=True)
            here: Counter[tuple[str, str, str, str]] = Counter()
            for entry in manifest.journal:
                identity = (entry.host, entry.section, entry.op, entry.key)
                here[identity] += 1
                whole.journal.append(_taken_in(entry, asked[identity] + entry.occurrence, bundle, target))
            asked.update(here)
        whole.hosts += [host for host in manifest.hosts if host not in whole.hosts]
        if part.replayed:
            whole.probes += manifest.probes
    if whole is None:
        raise ValueError("there is no part to merge")
    whole.asked = list(asked_hosts)
    # A probe that has not run yet is asked of every host; a pid means something on one host only.
    if len({run.host for run in whole.probes}) > 1:
        whole.target = []
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST).write_text(whole.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
    return whole


def _renamed(manifest: Manifest, host: str | None) -> Manifest:
    """Rename the only known host of a manifest; the user's files still belong to no host."""
    if host is None:
        return manifest
    for entry in manifest.journal:
        if entry.path and entry.host != UNKNOWN_HOST:
            entry.path = "/".join(["raw", host, *entry.path.split("/")[2:]])
    known: list[JournalEntry | ProbeRun] = [*manifest.journal, *manifest.probes]
    for one in known:
        one.host = host if one.host != UNKNOWN_HOST else one.host
    manifest.hosts = [host if name != UNKNOWN_HOST else name for name in manifest.hosts]
    return manifest


def _taken_in(entry: JournalEntry, occurrence: int, bundle: Bundle, target: Path) -> JournalEntry:
    if entry.path is None:
        return entry.model_copy(update={"occurrence": occurrence})
    path = _OCCURRENCE.sub(rf"-{occurrence}\1", entry.path)
    kept = target / (entry.content or path)
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        file = bundle.file(entry.content or entry.path)
        try:
            os.link(file, kept)
        except OSError:  # another file system
            shutil.copyfile(file, kept)
    return entry.model_copy(update={"occurrence": occurrence, "path": path})
