"""Recognises launchers, ranks and their workers in a process table, by `knowledge/launchers.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.process import Process


@dataclass(frozen=True)
class Identity:
    """The rank variables of a process; None for those it does not have."""

    launcher: str
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    hosts: int | None = None
    master: str | None = None
    contiguous: bool = False
    """The ranks of a host are numbered consecutively."""


@dataclass(frozen=True)
class _Convention:
    """Names of the variables in which a launcher passes the rank to a process; the first one set counts."""

    launcher: str
    rank: Sequence[str]
    local_rank: Sequence[str]
    world_size: Sequence[str]
    needs: Sequence[str]
    local_world_size: Sequence[str] = ()
    hosts: Sequence[str] = ()
    contiguous: bool = False

    def read(self, env: Mapping[str, str]) -> Identity | None:
        """Read the identity from these variables; None if they are not set."""
        rank = _number(env, self.rank)
        if rank is None or not any(name in env for name in self.needs):
            return None
        return Identity(
            launcher=self.launcher,
            rank=rank,
            local_rank=_number(env, self.local_rank),
            world_size=_number(env, self.world_size),
            local_world_size=_number(env, self.local_world_size),
            hosts=_number(env, self.hosts),
            master=master_of(env),
            contiguous=self.contiguous,
        )


@dataclass(frozen=True)
class _Worker:
    role: str
    name: re.Pattern[str] | None
    cmdline: re.Pattern[str] | None
    forked: bool

    def matches(self, process: Process, forked: bool) -> bool:
        """Whether a process's name or command line shows this kind of worker."""
        if self.forked and not forked:
            return False
        by_name = bool(self.name and self.name.search(process.name))
        return by_name or bool(self.cmdline and self.cmdline.search(process.command))


class LauncherKnowledge:
    """Classifies single processes, without regard to the process tree."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._launchers = [(e["launcher"], re.compile(e["cmdline"])) for e in data["launchers"]]
        self._alone = {e["launcher"] for e in data["launchers"] if e.get("alone")}
        self._conventions = [_Convention(**entry) for entry in data["conventions"]]
        self._titled = [(e["launcher"], re.compile(e["cmdline"])) for e in data["titled_ranks"]]
        self._workers = [
            _Worker(e["role"], _compiled(e, "name"), _compiled(e, "cmdline"), e.get("forked", False))
            for e in data["workers"]
        ]
        self._spawned = re.compile(data["spawned"]["cmdline"])
        self._python = re.compile(data["python"])
        self._debug_variables = list(data["debug_variables"])

    def launcher(self, process: Process) -> str | None:
        """The launcher that a process is; None if it is none."""
        return next((name for name, pattern in self._launchers if pattern.search(process.command)), None)

    def starts_only_ranks(self, launcher: str) -> bool:
        """Whether a launcher starts only distributed training, nothing else."""
        return launcher in self._alone

    def identity(self, process: Process) -> Identity | None:
        """The rank variables of a process, from its environment or its title."""
        for convention in self._conventions:
            if found := convention.read(process.env):
                return found
        titled = next((name for name, pattern in self._titled if pattern.search(process.command)), None)
        return Identity(titled, master=master_of(process.env)) if titled else None

    def worker_role(self, process: Process, *, forked: bool) -> str | None:
        """The kind of worker that a process is, or None; `forked`: it has its parent's command line."""
        return next((worker.role for worker in self._workers if worker.matches(process, forked)), None)

    def is_spawned(self, process: Process) -> bool:
        """Whether Python's multiprocessing started it with a fresh interpreter."""
        return bool(self._spawned.search(process.command))

    def is_python(self, process: Process) -> bool:
        """Whether it is a Python interpreter, whatever process title it has set."""
        program = process.command.partition(" ")[0]
        return any(map(self._python.search, (process.exe, program, process.name)))

    def debug_settings(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables in an environment that determine what a hang leaves behind, such as flight records."""
        return {name: env[name] for name in self._debug_variables if name in env}


def master_of(env: Mapping[str, str]) -> str | None:
    """`MASTER_ADDR:MASTER_PORT` of an environment; None if neither is set."""
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    return f"{address or '?'}:{port or '?'}" if address or port else None


@cache
def launcher_knowledge() -> LauncherKnowledge:
    """Load the launcher knowledge that ships with ddx."""
    return LauncherKnowledge(shipped("launchers.yaml"))


def _number(env: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The value of the first of these variables that is set, if it is a valid rank or count."""
    text = next((env[name] for name in names if name in env), "")
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) else None


def _compiled(entry: Mapping[str, str], key: str) -> re.Pattern[str] | None:
    return re.compile(entry[key]) if key in entry else None
