"""Turns a process table into rows of `ranks`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ddx_tools.evidence.schema import as_row
from ddx_tools.knowledge.launchers import launcher_knowledge
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.parsers.launch.launch_command import meeting_of
from ddx_tools.parsers.launch.launchers import Job, JobProcess, find_jobs
from ddx_tools.probes.declaration import ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.job_target import select_job
from ddx_tools.sources.raw import Raw, RawItem, Rows

_COMMAND_CHARS = 300


def capture_processes(host: Host, args: ProbeArgs) -> Raw:
    """Capture the process table of a host, and note which of its jobs is meant: all, if the target is empty."""
    raw = Raw(host.name)
    reply = host.processes()
    snapshot = _decoded(reply.data)
    jobs = find_jobs(snapshot)
    chosen = select_job(jobs, args.pids or args.target).id if args.target else None
    raw.items.append(RawItem("processes", reply.data, reply.source, {"job": chosen}))
    seen = snapshot["processes"]
    unreadable = sum(1 for row in seen if not row.get("readable") and row.get("state") != "Z")
    raw.searched.append(f"{len(seen)} Python and launcher processes on {host.name}, {unreadable} of them unreadable")
    if not jobs:
        raw.status = ProbeStatus.NO_DATA
        if unreadable:
            raw.problems.append(
                f"{unreadable} Python processes on {host.name} belong to another user and could not be read. If the "
                "job is among them, run ddx as its owner or with sudo."
            )
    return raw


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        snapshot = json.loads(data)
    except ValueError as error:
        raise UnreadableInput(f"the process snapshot is not JSON: {error}") from error
    if not isinstance(snapshot, dict):
        raise UnreadableInput("the process snapshot is not a JSON object")
    return snapshot


def rank_rows(raw: Raw) -> Rows:
    """Return the rows of `ranks`: one for each process of a job, and one for each rank without a process."""
    rows: list[dict[str, Any]] = []
    for item in raw.of("processes"):
        snapshot = _decoded(item.data)
        for job in find_jobs(snapshot):
            if item.facts.get("job") in (None, job.id):
                rows += [_row(raw.host, job, member, snapshot, item.source) for member in job.members]
    return {"ranks": rows}


def _row(host: str, job: Job, member: JobProcess, snapshot: Mapping[str, Any], source: str) -> dict[str, Any]:
    row = as_row("ranks", member, job, host=host, job=job.id, run_dir=None, source=source)
    process = member.process
    if process is None:
        return row
    seen = process.row
    now, began = snapshot.get("now"), seen.get("create_time")
    wall_s = None if now is None or began is None else round(max(0.0, now - began), 3)
    cpu: list[Any] = [seen.get("cpu_user_s"), seen.get("cpu_system_s")]
    cpu_s = None if None in cpu else sum(cpu)
    fds = seen.get("fds") or {}
    meeting = meeting_of(process.words, process.env) if member.role == "launcher" else None
    return row | {
        "ppid": process.ppid,
        "state": process.state,
        "cpu_percent": round(100 * cpu_s / wall_s, 1) if cpu_s is not None and wall_s else None,
        "wall_s": wall_s,
        "rss_bytes": seen.get("rss_bytes"),
        "command": process.command[:_COMMAND_CHARS],
        "cwd": seen.get("cwd"),
        "stdout": fds.get("1"),
        "stderr": fds.get("2"),
        "run_dir": process.env.get("DDX_RUN_DIR"),
        "python": process.exe or None,
        "debug": json.dumps(launcher_knowledge().debug_settings(process.env), sort_keys=True),
        "nodes": meeting.nodes if meeting else None,
        "endpoint": meeting.endpoint if meeting else None,
    }
