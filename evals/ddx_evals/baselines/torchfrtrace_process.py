"""Runs `torchfrtrace`, the analyzer that ships with PyTorch, on a directory of dumps.

It loads pickles with full trust, so it runs only on our own dumps, in a separate process with a time limit, since it
may take minutes. That process is forked from one that has imported torch, since the import takes longer than most jobs.
It reads pickled dumps named by a prefix and the rank.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.model.files.rank_names import facts_of_name

_SERVER = r"""
import os, signal, sys, traceback
from torch.distributed.flight_recorder.fr_trace import main

for line in sys.stdin:
    directory, output, limit_s = line.rstrip("\n").split("\t")
    child = os.fork()
    if child == 0:
        signal.alarm(int(limit_s))
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = 0
        try:
            main(["--allow-incomplete-ranks", "-p", "dump_", directory])
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_SETS = re.compile(r"(?:missing|[Cc]ulprit)[ _]ranks?(?:\(s\))?:?[ =]*[\[{(]([\d, ]*)[\]})]")
_SINGLE = re.compile(r"(?:[Cc]ulprit|Mismatched|error at) rank:? (\d+)")


@dataclass(frozen=True)
class Named:
    """The analyzer's answer. Any exit status other than 0 is a crash, perhaps after an answer."""

    ranks: tuple[int, ...]
    """The ranks that it calls missing, mismatched or culprits."""
    undecided: bool
    """Whether it says that it cannot decide."""
    failed: bool
    """Whether it crashed or ran out of time before it named a rank."""


def run_torchfrtrace(directory: Path, files: Iterable[str], *, limit_s: float) -> Named:
    """Run it on the dumps `files` of a directory. Many runs are faster within `kept_ready`."""
    with tempfile.TemporaryDirectory() as prepared, kept_ready():
        for name in files:
            rank = facts_of_name(name).rank
            if rank is None or name.endswith(".header.json"):
                continue
            (Path(prepared) / f"dump_{rank}").symlink_to((directory / name).resolve())
        said = Path(prepared) / "said.txt"
        code = _ready[0].status_of(f"{prepared}\t{said}\t{math.ceil(limit_s)}")
        output = said.read_text(errors="replace") if said.exists() else ""
    ranks = named_in(output)
    return Named(ranks, undecided="cannot decide" in output, failed=code != 0 and not ranks)


@contextmanager
def kept_ready() -> Iterator[None]:
    """Let one process serve all runs in the block; it starts with the first run and ends with the block."""
    if _ready:
        yield
        return
    _ready.append(_Forking())
    try:
        yield
    finally:
        _ready.pop().close()


class _Forking:
    """The process that forks a child for each run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def status_of(self, question: str) -> int:
        """Run it once and return the exit status."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process by closing its standard input."""
        if self._process is not None:
            self._process.communicate()


_ready: list[_Forking] = []
"""The process that is kept ready, if any."""


def named_in(output: str) -> tuple[int, ...]:
    """The ranks that its output names as missing, mismatched or culprits."""
    found = {int(rank) for listed in _SETS.findall(output) for rank in listed.replace(",", " ").split()}
    return tuple(sorted(found | {int(rank) for rank in _SINGLE.findall(output)}))
