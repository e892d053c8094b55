"""Asks a machine all that somebody who investigates a job could want to know of it, and keeps the answers.

Run as a program (`python -m ddx_evals.recorder.capture`, a `Capture` on stdin) it asks the machine that it stands on,
which for the hosts of a lab job is inside their namespaces.
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
"""Symbols of a torch process take seconds: of larger jobs, C frames and locals are kept of the first ranks only."""


class Capture(BaseModel):
    """What is to be asked of one host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path
    """Where the bundle goes; absent or empty."""
    workdir: Path
    launcher_pid: int | None = None
    """None: nobody started anything there."""
    rank_pids: dict[int, int] = {}
    """Of the ranks that ran there, also of those that have ended."""
    other_pids: tuple[int, ...] = ()
    """Further processes that one sees there."""
    living: bool = False
    """The launcher has not ended: then the job is asked about, else what it left behind."""
    left_behind: tuple[Path, ...] = ()
    """Logs and run directories; none: those of another host are asked for there."""
    peers: tuple[str, ...] = ()
    """Names and addresses of the other hosts of the job."""
    port: int = 0
    kernel_log: bool = False


def capture(asked: Capture) -> None:
    """Write the bundle of one host. Raises what `investigate` raises."""
    scratch = asked.directory.with_name(f"{asked.directory.name}-parts")
    parts = [BundlePart(directory, replayed) for directory, replayed in _parts(asked, scratch)]
    merge(parts, asked.directory)


def _parts(asked: Capture, scratch: Path) -> Iterator[tuple[Path, bool]]:
    """Bundles, each with whether its probes are what `ddx why` would have run; of the others only answers are kept."""

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
            continue  # it is not about such a job
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
    """The program that the job runs, as files of a bundle."""
    writer = BundleWriter(directory, [])
    recording = RecordingHost(host, writer, SOURCES)
    for path in sorted(path for pattern in _SOURCES for path in workdir.glob(pattern)):
        recording.read(str(path))
    writer.close()
    return directory


if __name__ == "__main__":
    capture(Capture.model_validate_json(sys.stdin.read()))
