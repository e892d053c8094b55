"""Several bundles of one job become one: those of its hosts, and what was asked of each besides."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.bundle import MANIFEST, JournalEntry, Manifest

_OCCURRENCE = re.compile(r"-\d+(\.\w+)$")


@dataclass(frozen=True)
class Part:
    """A bundle to take in."""

    directory: Path
    replayed: bool = True
    """Its probes are run again when the whole is diagnosed; without, it only adds answers to ask for."""


def merge(parts: Sequence[Part], target: Path) -> Manifest:
    """Write the bundle `target` (a new directory) with the answers of all parts, in their order.

    A question that was asked of the same host in two parts was asked twice, one occurrence after the other.
    """
    whole: Manifest | None = None
    asked: Counter[tuple[str, str, str, str]] = Counter()
    for part in parts:
        manifest = Manifest.model_validate_json((part.directory / MANIFEST).read_bytes())
        if whole is None:
            whole = manifest.model_copy(update={"probes": [], "journal": [], "hosts": []}, deep=True)
        before = asked.copy()
        for entry in manifest.journal:
            identity = (entry.host, entry.section, entry.op, entry.key)
            asked[identity] += 1
            whole.journal.append(_taken_in(entry, before[identity] + entry.occurrence, part.directory, target))
        whole.hosts += [host for host in manifest.hosts if host not in whole.hosts]
        if part.replayed:
            whole.probes += manifest.probes
    if whole is None:
        raise ValueError("there is no part to merge")
    # A probe that nobody ran yet is asked of every host about the same; a pid means something on one only.
    if len({run.host for run in whole.probes}) > 1:
        whole.target = []
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST).write_text(whole.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
    return whole


def _taken_in(entry: JournalEntry, occurrence: int, source: Path, target: Path) -> JournalEntry:
    if entry.path is None:
        return entry.model_copy(update={"occurrence": occurrence})
    path = _OCCURRENCE.sub(rf"-{occurrence}\1", entry.path)
    kept = entry.content or path
    (target / kept).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / (entry.content or entry.path), target / kept)
    return entry.model_copy(update={"occurrence": occurrence, "path": path})
