"""Finds the job that a target means; without a target, the only job."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddx_tools.model.errors import UsageError
from ddx_tools.parsers.launch.launchers import Job, find_jobs
from ddx_tools.sources.host import Host


def job_on(host: Host, target: Sequence[str] = ()) -> Job:
    """Return the running job on a host that `target` (process ids) selects, or else the only job.

    Raises UsageError, as `select_job` does.
    """
    return select_job(find_jobs(json.loads(host.processes().data)), target)


def select_job(jobs: Sequence[Job], target: Sequence[str] = ()) -> Job:
    """Select a job by the ids of its processes; without a target, return the only one.

    Raises UsageError, which says what to type, if no job or more than one fits.
    """
    if target:
        return _job_of_pid(jobs, target)
    running = [job for job in jobs if job.ranks] or list(jobs)
    if not running:
        raise UsageError(
            "No distributed PyTorch job was found on this host.",
            "ddx looked for torchrun, torch.distributed.run, accelerate, deepspeed, mpirun, srun and Ray Train "
            "workers, "
            "for processes with RANK and WORLD_SIZE in their environment, and for children of "
            "torch.multiprocessing.spawn that are connected to each other.\n"
            "If the job runs as another user: `sudo ddx why`. If it runs in a container: run ddx inside it, or on "
            "the host as root.\nIf it has ended, give its logs: `ddx why FILE…`. To start a job under watch: `ddx run "
            "-- torchrun …`.",
        )
    if len(running) > 1:
        lines = [f"  ddx why {_handle(job)}   # {_describe(job)}" for job in running]
        raise UsageError(f"{len(running)} distributed jobs run on this host: which one?", "\n".join(lines))
    return running[0]


def _job_of_pid(jobs: Sequence[Job], target: Sequence[str]) -> Job:
    wanted = [_pid(text) for text in target]
    found = [next((job for job in jobs if job.is_named_by(pid)), None) for pid in wanted]
    for pid, job in zip(wanted, found, strict=True):
        if job is None:
            known = "\n".join(f"  {_handle(job)}   # {_describe(job)}" for job in jobs)
            raise UsageError(
                f"Process {pid} belongs to no distributed job that this user can see.",
                f"Jobs on this host, each with a pid that selects it:\n{known}"
                if jobs
                else "No job was found at all: `ddx doctor`.",
            )
    ids = {job.id: job for job in found if job}
    if len(ids) > 1:
        raise UsageError("These processes belong to different jobs.", f"Name one of: {', '.join(sorted(ids))}.")
    return next(iter(ids.values()))


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{text[:80]!r} is not a process id.", "`ddx jobs` lists the jobs and their processes.")
    return int(text)


def _handle(job: Job) -> int:
    """A pid that selects the job."""
    if job.member(job.root_pid) or not job.live:
        return job.root_pid
    return job.live[0].pid or job.root_pid


def _describe(job: Job) -> str:
    size = f"{job.world_size} ranks" if job.world_size else f"{len(job.ranks)} rank processes"
    first = next((m.process for m in job.ranks if m.process), None) or next(
        (m.process for m in job.members if m.process), None
    )
    return f"{job.launcher}, {size}: {first.command[:100] if first else ''}".rstrip(": ")
