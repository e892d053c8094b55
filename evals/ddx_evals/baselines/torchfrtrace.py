"""The answer of PyTorch's own flight record analyzer. It names ranks, never a cause."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from ddx_evals.baselines.answers import OTHER, diagnosed, undecided
from ddx_evals.baselines.case import Answer, Case
from ddx_evals.baselines.torchfrtrace_process import run_torchfrtrace
from ddx_evals.scoring import ToolCall, Transcript
from ddx_tools.model.diagnosis import Level, Party
from ddx_tools.model.files.rank_names import facts_of_name
from ddx_tools.sources.bundle import Bundle, is_bundle

_LIMIT_S = 60.0
_PICKLE_PROTOCOL = b"\x80"


def torchfrtrace(case: Case) -> Answer:
    """Blame the ranks that it calls missing, mismatched or culprits; undecided without dumps or torch, or if it fails.

    It trusts the dumps, so it must only get our own.
    """
    dumps = _dumps(case.material)
    if not dumps or find_spec("torch") is None:
        return Answer(undecided())
    with tempfile.TemporaryDirectory(prefix="job-") as scratch:
        for name, data in dumps.items():
            (Path(scratch) / name).write_bytes(data)
        named = run_torchfrtrace(Path(scratch), dumps, limit_s=_LIMIT_S)
    transcript = Transcript(calls=[ToolCall(tool="torchfrtrace")])
    if not named.ranks:
        return Answer(undecided(), transcript)
    blamed = Party(ranks=list(named.ranks))
    return Answer(diagnosed(OTHER, blamed, [], probability=0.5, level=Level.SUPPORTED), transcript)


def _dumps(material: Path) -> dict[str, bytes]:
    """The pickled records by their names on the host; only the last of each rank, as the analyzer takes one."""
    by_rank = {
        rank: (name, data)
        for name, data in sorted(_files(material))
        if (rank := facts_of_name(name).rank) is not None and data.startswith(_PICKLE_PROTOCOL)
    }
    return dict(by_rank.values())


def _files(material: Path) -> Iterator[tuple[str, bytes]]:
    if material.is_dir() and not is_bundle(material):
        yield from ((file.name, file.read_bytes()) for file in sorted(material.rglob("*")) if file.is_file())
        return
    with Bundle(material) as bundle:
        for entry in bundle.manifest.journal:
            if entry.op == "read" and entry.path:
                yield PurePosixPath(entry.key).name, bundle.read(entry.path)
