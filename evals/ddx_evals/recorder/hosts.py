"""Captures every host of a lab job from inside and merges the answers into one bundle."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ddx_evals.incidents.incident import IncidentError
from ddx_evals.lab import LabRun
from ddx_evals.lab.launching import ranks_of
from ddx_evals.lab.machine import PORT
from ddx_evals.recorder.capture import Capture, capture
from ddx_tools.investigation.many_hosts.merge import BundlePart, merge
from ddx_tools.sources.bundle import Manifest

_CAPTURE_S = 240


def capture_run(run: LabRun, directory: Path) -> Manifest:
    """Capture a lab job into the bundle `directory`. Raises IncidentError if a host does not answer."""
    with tempfile.TemporaryDirectory(prefix="ddx-hosts-") as scratch:
        asked = [_of_host(run, host, Path(scratch)) for host in run.machines or [None]]
        for host, one in zip(run.machines or [None], asked, strict=True):
            _ask(run, host, one)
        return merge([BundlePart(one.directory) for one in asked], directory)


def _of_host(run: LabRun, host: str | None, scratch: Path) -> Capture:
    machine = run.machines.get(host or "")
    launcher_pid = run.launcher_pids.get(host)
    pids = run.rank_pids()
    ranks = ranks_of(run.scenario.hosts, run.nproc)[host] if host else tuple(pids)
    others = [other for name, other in run.machines.items() if name != host]
    return Capture(
        directory=scratch / (host or "job"),
        workdir=run.workdir,
        launcher_pid=launcher_pid,
        rank_pids={rank: pids[rank] for rank in ranks if rank in pids},
        other_pids=tuple(machine.other_pids) if machine else (),
        living=launcher_pid is not None and host not in run.ended_hosts,
        left_behind=_left_behind(run, host),
        peers=tuple(words for other in others for words in (other.name, other.address)),
        port=PORT,
        kernel_log=bool(machine and machine.place.kernel_log),
    )


def _left_behind(run: LabRun, host: str | None) -> tuple[Path, ...]:
    """What ended launchers left behind. All hosts see the same files, so the first host shows them for all."""
    ended = [launch for launch in run.launches if launch.host in run.ended_hosts]
    if not ended or ended[0].host != host:
        return ()
    runs = [path for launch in ended for path in _run_directories(run, launch.host)]
    return (*runs, *(run.workdir / launch.log for launch in ended))


def _run_directories(run: LabRun, host: str | None) -> list[Path]:
    """The directories of `ddx run`, whose names end in its pid."""
    return sorted(run.workdir.glob(f"ddx-runs/*-{run.launcher_pids[host]}"))


def _ask(run: LabRun, host: str | None, asked: Capture) -> None:
    if host is None:
        capture(asked)
        return
    program = [sys.executable, "-m", "ddx_evals.recorder.capture"]
    argv = run.machines[host].enter(program, cwd=Path("/"), as_job=False)
    done = subprocess.run(
        argv, input=asked.model_dump_json(), capture_output=True, text=True, check=False, timeout=_CAPTURE_S
    )
    if done.returncode:
        raise IncidentError(f"{host} could not be captured:\n{done.stderr[-2000:]}")
