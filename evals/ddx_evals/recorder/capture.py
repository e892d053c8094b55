"""Captures everything about a job on a machine that an investigator could ask for, and saves the answers.

Run as a program (`python -m ddx_evals.recorder.capture`, a `Capture` on stdin) it captures its own machine, which for a
lab job's hosts means inside their namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ddx_evals.recorder.job_host import JobHost
from ddx_tools.investigation.many_hosts.merge import BundlePart, merge
from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.probes.registry import probe
from ddx_tools.sources.bundle import BundleWriter
from ddx_tools.sources.hosts.recorded import RecordingHost

SOURCES = "sources"
_SOURCES = ("*.py", "*.yaml", "*.json", "*.sh", "*.txt")
_MOST_DEEP_LOOKS = 8
"""Symbols of a torch process take seconds: in larger jobs, only the first ranks have C frames and locals."""


class Capture(BaseModel):
    """What to capture on one host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path
    """The directory for the bundle; absent or empty."""
    workdir: Path
    launcher_pid: int | None = None
    """None: no launcher was started there."""
    rank_pids: dict[int, int] = {}
    """The pids of the ranks that ran there, including ended ones."""
    other_pids: tuple[int, ...] = ()
    """Other visible processes there."""
    living: bool = False
    """Whether the launcher is still running: then the job is captured, otherwise what it left behind."""
    left_behind: tuple[Path, ...] = ()
    """Logs and run directories; empty if another host captures them."""
    peers: tuple[str, ...] = ()
    """Names and addresses of the job's other hosts."""
    port: int = 0
    kernel_log: bool = False


def capture(asked: Capture) -> None:
    """Write the bundle of one host. Raises the same errors as `investigate`."""
    scratch = asked.directory.with_name(f"{asked.directory.name}-parts")
    parts = [BundlePart(directory, replayed) for directory, replayed in _parts(asked, scratch)]
    merge(parts, asked.directory)


def _parts(asked: Capture, scratch: Path) -> Iterator[tuple[Path, bool]]:
    """Yield bundles, each with whether `ddx why` would have run its probes; the others only contribute answers."""

    def machine(name: str | None) -> JobHost:
        launcher = [asked.launcher_pid] if asked.launcher_pid else []
        pids = [*launcher, *asked.rank_pids.values(), *asked.other_pids]
        return JobHost(name, pids, kernel_log=asked.kernel_log)

    if asked.living:
        investigate([str(asked.launcher_pid)], scratch / "live", machine=machine)
        yield scratch / "live", True
    elif asked.left_behind:
        investigate([str(path) for path in asked.left_behind], scratch / "left", machine=machine)
        yield scratch / "left", True
    for number, step in enumerate(_further_steps(asked)):
        directory = scratch / f"further-{number}"
        try:
            run_probe(step, save=directory, machine=machine)
        except (UsageError, HostError):
            continue  # the probe does not apply to such a job
        yield directory, step.probe.id == "host"
    yield _sources(machine(None), asked.workdir, scratch / SOURCES), False


def _further_steps(asked: Capture) -> Iterator[Step]:
    def step(probe_id: str, **args: Any) -> Step:
        target = [str(asked.launcher_pid)] if asked.living else []
        return Step(probe(probe_id), {"target": target, **args})

    if asked.living:
        few = {"ranks": sorted(asked.rank_pids)[:_MOST_DEEP_LOOKS]}
        yield step("flight_recorder", frames="all")
        yield step("mesh")
        yield step("native_stacks", **few)
        yield step("native_stacks", show_locals=True, **few)
    else:
        yield step("host")
    if asked.peers:
        yield Step(probe("network"), {"target": [], "peer": list(asked.peers), "port": [asked.port]})
    elif asked.living:
        yield Step(probe("network"), {"target": []})


def _sources(host: JobHost, workdir: Path, directory: Path) -> Path:
    """Save the program that the job runs as files of a bundle."""
    writer = BundleWriter(directory, [])
    recording = RecordingHost(host, writer, SOURCES)
    for path in sorted(path for pattern in _SOURCES for path in workdir.glob(pattern)):
        recording.read(str(path))
    writer.close()
    return directory


if __name__ == "__main__":
    capture(Capture.model_validate_json(sys.stdin.read()))
