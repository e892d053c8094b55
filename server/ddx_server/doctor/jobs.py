"""Checks of the jobs on this machine: permission, torch version, flight recorder, rank agent."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ddx_server.doctor.report import DoctorCheck, State
from ddx_tools.model.errors import DdxError, HostError
from ddx_tools.parsers.launch.launchers import Job, JobProcess, find_jobs
from ddx_tools.sources.host import Host

_RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_RECORDER_ON_SINCE = (2, 11)  # default of FlightRecorder.hpp in the wheels: 0 up to 2.10, 2000 from 2.11
_NEXT_TIME = "Next time, start the job with: ddx run -- torchrun …"


def check_jobs(host: Host) -> Iterator[DoctorCheck]:
    """Yield the checks of every job, or one check that says there is no job."""
    try:
        jobs = find_jobs(json.loads(host.processes().data))
    except (DdxError, ValueError) as error:
        yield DoctorCheck(name="jobs", state=State.UNKNOWN, detail=f"the process table could not be read: {error}")
        return
    if not jobs:
        yield DoctorCheck(
            name="jobs", state=State.OK, detail="no distributed job is running here that this user can see"
        )
    for job in jobs:
        yield _permission(job)
        if job.live:
            version = _torch_version(host, job.live[0])
            yield _torch(job, version)
            yield _recorder(job, version)
            yield _agent(host, job)


def _permission(job: Job) -> DoctorCheck:
    unreadable = [member for member in job.ranks if member.role == "unreadable"]
    if not unreadable:
        what = f"{len(job.live)} ranks, all readable" if job.ranks else "no rank has a process (yet)"
        return DoctorCheck(name=f"job {job.id}", state=State.OK, detail=what)
    users = sorted({str(m.process.row.get("user") or "?") for m in unreadable if m.process}) or ["another user"]
    return DoctorCheck(
        name=f"job {job.id}",
        state=State.GAP,
        detail=f"{len(unreadable)} of {len(job.ranks)} ranks belong to {', '.join(users)} and cannot be read",
        remedy=f"sudo ddx why {job.root_pid}",
    )


def _torch(job: Job, version: str | None) -> DoctorCheck:
    if version is None:
        detail = "not found beside the ranks' interpreter (a zip, an editable install, another PYTHONPATH?)"
        return DoctorCheck(name=f"torch of {job.id}", state=State.UNKNOWN, detail=detail)
    return DoctorCheck(name=f"torch of {job.id}", state=State.OK, detail=version)


def _torch_version(host: Host, member: JobProcess) -> str | None:
    """The rank's torch version, from the name of torch's metadata directory; imports and runs nothing of the user's."""
    process = member.process
    if process is None:
        return None
    # The command's interpreter comes first: in a virtual environment it is a link to the one that `exe` names.
    arguments = process.row.get("cmdline") or [""]
    roots = [process.env.get("VIRTUAL_ENV", "")]
    roots += [str(PurePosixPath(path).parent.parent) for path in (str(arguments[0]), process.exe)]
    for root in dict.fromkeys(root for root in roots if root.startswith("/")):
        for packages in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"):
            try:
                found = host.glob(f"{glob.escape(root)}/{packages}/torch-*.dist-info")
            except HostError:
                continue
            if found:
                return PurePosixPath(found[0]).name.removeprefix("torch-").removesuffix(".dist-info")
    return None


def _recorder(job: Job, version: str | None) -> DoctorCheck:
    name = f"flight recorder of {job.id}"
    env: Mapping[str, str] = job.live[0].process.env if job.live[0].process else {}
    variable = next((key for key in _RECORDER_VARIABLES if key in env), None)
    if variable:
        on = env[variable].isdigit() and int(env[variable][:9]) > 0
        detail = f"{'on' if on else 'off'}: {variable}={env[variable][:20]}"
    else:
        release = re.match(r"(\d+)\.(\d+)", version or "")
        if not release:
            return DoctorCheck(
                name=name, state=State.UNKNOWN, detail="not set; the default depends on the torch version"
            )
        on = (int(release[1]), int(release[2])) >= _RECORDER_ON_SINCE
        detail = f"{'on' if on else 'off'} by default in torch {version}"
    remedy = f"{_NEXT_TIME}, or set TORCH_FR_BUFFER_SIZE=20000 (torch before 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE)"
    return DoctorCheck(name=name, state=State.OK if on else State.GAP, detail=detail, remedy="" if on else remedy)


def _agent(host: Host, job: Job) -> DoctorCheck:
    name = f"rank agent of {job.id}"
    if not job.run_dir:
        detail = "none: stacks can be read, but not the flight records of a hung Gloo job"
        return DoctorCheck(name=name, state=State.GAP, detail=detail, remedy=_NEXT_TIME)
    try:
        sockets = host.glob(f"{glob.escape(job.run_dir)}/ranks/rank-*.sock")
    except HostError as error:
        return DoctorCheck(name=name, state=State.UNKNOWN, detail=error.message)
    answering = len({PurePosixPath(path).name.split(".")[0] for path in sockets})
    state = State.OK if answering >= len(job.live) else State.GAP
    detail = f"{answering} of {len(job.live)} ranks have one in {job.run_dir}"
    remedy = (
        ""
        if state is State.OK
        else f"Ranks may still be starting; otherwise look for the reason: ls {job.run_dir}/ranks"
    )
    return DoctorCheck(name=name, state=state, detail=detail, remedy=remedy)
