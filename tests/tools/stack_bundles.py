"""The recorded bundles of hung (and healthy) jobs, and ways to damage a copy of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.packed_bundle import MANIFEST

FIXTURES = Path(__file__).parents[1] / "fixtures/stacks"
TRUTHS: dict[str, dict[str, Any]] = json.loads((FIXTURES / "truth.json").read_text(encoding="utf-8"))
NAMES = sorted(TRUTHS)


def packed(name: str) -> Path:
    """A recorded bundle as it lies in the repository."""
    return FIXTURES / f"{name}.tar.zst"


def unpacked(name: str, directory: Path) -> Path:
    """A copy as a directory, to damage."""
    copy = directory / name
    with Bundle(packed(name)) as bundle:
        shutil.copytree(bundle.directory, copy)
    return copy


def manifest(directory: Path) -> dict[str, Any]:
    """The manifest as plain JSON."""
    content: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    return content


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Put a manifest in place."""
    (directory / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def forget(directory: Path, which: Callable[[dict[str, Any]], bool]) -> int:
    """Take journal entries out, as if nobody had asked; how many."""
    content = manifest(directory)
    kept = [entry for entry in content["journal"] if not which(entry)]
    taken = len(content["journal"]) - len(kept)
    write_manifest(directory, content | {"journal": kept})
    return taken


def lose(directory: Path, which: Callable[[dict[str, Any]], bool]) -> int:
    """Delete raw files whose journal entries stay; how many."""
    files = [
        directory / (e.get("content") or e["path"]) for e in manifest(directory)["journal"] if e["path"] and which(e)
    ]
    for file in files:
        file.unlink()
    return len(files)


def pid_of_rank(directory: Path, rank: int) -> int:
    """The process of a rank, as the process table of the bundle has it."""
    entry = next(e for e in manifest(directory)["journal"] if e["op"] == "processes")
    rows = json.loads((directory / (entry.get("content") or entry["path"])).read_text(encoding="utf-8"))["processes"]
    return next(int(row["pid"]) for row in rows if (row["env"] or {}).get("RANK") == str(rank))


def stack_of(pid: int) -> Callable[[dict[str, Any]], bool]:
    """The dumps of one process."""
    return lambda entry: entry["op"] == "stack" and entry["key"].split()[0] == str(pid)
