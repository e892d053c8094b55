"""What `torchfrtrace`, the analyzer that ships with PyTorch, names in a directory of dumps.

It loads pickles with full trust, so it is run on dumps of our own making only; and in a process of its own with a time
limit, as it may take minutes. It reads pickled dumps named by a prefix and the rank.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.formats.fr_origin import facts_of_name

_COMMAND = (
    sys.executable,
    "-m",
    "torch.distributed.flight_recorder.fr_trace",
    "--allow-incomplete-ranks",
    "-p",
    "dump_",
)
_SETS = re.compile(r"(?:missing|[Cc]ulprit)[ _]ranks?(?:\(s\))?:?[ =]*[\[{(]([\d, ]*)[\]})]")
_SINGLE = re.compile(r"(?:[Cc]ulprit|Mismatched|error at) rank:? (\d+)")


@dataclass(frozen=True)
class Named:
    """What it printed. An exit status of its own it has not: one other than 0 is a crash, maybe behind an answer."""

    ranks: tuple[int, ...]
    """The ranks that it calls missing, mismatched or culprits."""
    undecided: bool
    """It says that it cannot decide."""
    failed: bool
    """It crashed or ran out of time before it named anybody."""


def run_torchfrtrace(directory: Path, files: Iterable[str], *, limit_s: float) -> Named:
    """What it names in the dumps `files` of a directory."""
    with tempfile.TemporaryDirectory() as prepared:
        for name in files:
            rank = facts_of_name(name).rank
            if rank is None or name.endswith(".header.json"):
                continue
            (Path(prepared) / f"dump_{rank}").symlink_to((directory / name).resolve())
        try:
            ran = subprocess.run([*_COMMAND, prepared], capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return Named((), undecided=False, failed=True)
    output = ran.stdout + ran.stderr
    ranks = named_in(output)
    return Named(ranks, undecided="cannot decide" in output, failed=ran.returncode != 0 and not ranks)


def named_in(output: str) -> tuple[int, ...]:
    """The ranks that its lines name as missing, mismatched or culprits."""
    found = {int(rank) for listed in _SETS.findall(output) for rank in listed.replace(",", " ").split()}
    return tuple(sorted(found | {int(rank) for rank in _SINGLE.findall(output)}))
