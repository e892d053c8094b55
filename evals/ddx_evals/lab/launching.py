"""The commands that start a lab job on each of its hosts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.lab.machine import PORT
from ddx_evals.lab.place import LabHost
from ddx_evals.lab.scenario import Scenario
from ddx_tools.model.install_hint import install_command


class NoTorch(Exception):
    """Lab jobs cannot run here. The message says what to type."""


@dataclass(frozen=True)
class LabLaunch:
    """One launcher: its command line, directory and environment."""

    argv: list[str]
    log: str
    """File in the job's directory for stdout and stderr of the launcher and its ranks."""
    environment: dict[str, str]
    host: str | None = None
    """None: the machine that the lab runs on."""


def launches(scenario: Scenario, nproc: int, step: int, prefix: Sequence[str] = ()) -> list[LabLaunch]:
    """The launchers of a job with `nproc` ranks, rank 0's first; `prefix` is put before each command.

    Raises NoTorch, and ValueError if the ranks cannot be divided among the hosts.
    """
    args = [scenario.fill(arg, nproc, step) for arg in scenario.args]
    if scenario.hosts:
        return [
            LabLaunch(
                [*prefix, *_on_host(scenario, number, nproc), "train.py", *args],
                f"{host.name}.log" if len(scenario.hosts) > 1 else "train.log",
                {**scenario.environment, **host.environment},
                host.name,
            )
            for number, host in enumerate(scenario.hosts)
            if host.launches
        ]
    if scenario.launcher == "env":
        launch = [sys.executable, "launch.py", str(nproc)]
    else:
        launch = [_torchrun(), "--standalone", f"--nproc-per-node={nproc}", *scenario.launcher_args]
    return [LabLaunch([*prefix, *launch, "train.py", *args], "train.log", dict(scenario.environment))]


def ranks_of(hosts: Sequence[LabHost], nproc: int) -> dict[str, tuple[int, ...]]:
    """The ranks on each host."""
    each = nproc // len(hosts)
    return {host.name: tuple(range(number * each, (number + 1) * each)) for number, host in enumerate(hosts)}


def _on_host(scenario: Scenario, number: int, nproc: int) -> list[str]:
    hosts = scenario.hosts
    if nproc % len(hosts):
        raise ValueError(f"{nproc} ranks cannot be divided among {len(hosts)} hosts")
    own = hosts[number]
    return [
        _torchrun(),
        f"--nnodes={len(hosts)}",
        f"--node-rank={number}",
        f"--nproc-per-node={nproc // len(hosts)}",
        f"--master-addr={hosts[0].name}",
        f"--master-port={PORT}",
        *scenario.launcher_args,
        *own.launcher_args,
    ]


def _torchrun() -> str:
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        raise NoTorch(
            f"there is no torchrun beside {sys.executable}: lab jobs need torch; type: {install_command('lab')}"
        )
    return str(torchrun)
