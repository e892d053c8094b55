"""Finds the processes of one lab job by its working directory, which no other job shares."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def processes_in(workdir: Path) -> list[psutil.Process]:
    """All living processes with the working directory `workdir`, as far as visible to the caller."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(workdir):
                found.append(process)
    return found


def rank_processes(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """The ranks among `processes`: those that have RANK set and whose parents do not.

    Dataloader workers and other helpers inherit RANK from the rank that started them.
    """
    ranks: dict[int, psutil.Process] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error, ValueError):
            rank = process.environ().get("RANK")
            parent = process.parent()
            if rank is not None and (parent is None or "RANK" not in parent.environ()):
                ranks[int(rank)] = process
    return dict(sorted(ranks.items()))


def kill_all(workdir: Path, known: Iterable[psutil.Process], timeout_s: float = 20.0) -> list[int]:
    """Kill `known`, their descendants and everything running in `workdir`; return the pids that survive."""
    known = list(known)
    deadline = time.monotonic() + timeout_s
    while True:
        targets = _living({*known, *_descendants(known), *processes_in(workdir)})
        if not targets or time.monotonic() > deadline:
            return sorted(process.pid for process in targets)
        for process in targets:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(targets, timeout=1.0)


def _descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += process.children(recursive=True)
    return found


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living
