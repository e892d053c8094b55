"""Captures environments and launch commands, from the ranks of a live job or from files, and turns them into rows."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddx_tools.knowledge.variables import is_of_interest
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError
from ddx_tools.model.launch import Value
from ddx_tools.parsers.launch.environment_file import FoundEnvironment, FoundLaunch, read_file
from ddx_tools.parsers.launch.launch_command import layers_of
from ddx_tools.parsers.launch.launchers import Job, JobProcess, find_jobs
from ddx_tools.probes.declaration import ProbeArgs
from ddx_tools.probes.env.rows import option_rows, rows_of_file, value_rows
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.job_target import select_job
from ddx_tools.sources.kinds import TextKind, launch_text
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows


def capture_environments(host: Host, args: ProbeArgs) -> Raw:
    """Capture the environments of a live job's ranks, or those in files; files without any are left to other probes."""
    raw = Raw(host.name)
    if not args.paths:
        _capture_job(host, args.target, raw)
        return raw
    taken = intake_of(host, args.paths)
    taken.note_gaps(raw, "The job's settings in this file are unknown.")
    for material in taken.of(TextKind.LAUNCH):
        text = launch_text(material.path, material.head)
        raw.items.append(RawItem("file", text, material.source, {"path": material.name}))
    raw.searched.append(f"{len(raw.items)} files with environments or launch commands among {len(taken.materials)}")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _capture_job(host: Host, target: Sequence[str], raw: Raw) -> None:
    reply = host.processes()
    snapshot = json.loads(reply.data)
    job = select_job(find_jobs(snapshot), target)
    raw.items.append(RawItem("processes", reply.data, reply.source, {"job": job.id}))
    raw.searched.append(f"the environments of {len(job.live)} ranks of {job.id}")
    for pattern in package_patterns(job):
        try:
            found = host.glob(pattern)
        except HostError:  # an older bundle, made without this question
            continue
        raw.items.append(RawItem("packages", json.dumps(found).encode(), reply.source))
    hidden = len(job.ranks) - len(job.live)
    if hidden:
        raw.status = ProbeStatus.PARTIAL
        raw.problems.append(f"The environments of {hidden} ranks of {job.id} could not be read.")


def captured_rows(raw: Raw) -> Rows:
    """Return the rows of `env_values`, `launch_options` and `env_versions`."""
    return merge_rows(_rows(item, raw.host) for item in raw.items)


def _rows(item: RawItem, host: str) -> Rows:
    if item.kind == "file":
        return rows_of_file(read_file(item.facts["path"], item.data), item.facts["path"], item.source)
    if item.kind == "packages":
        return {"env_versions": version_rows(map(str, json.loads(item.data)), host, item.source)}
    jobs = [job for job in find_jobs(json.loads(item.data)) if job.id == item.facts["job"]]
    return merge_rows(process_rows(job, host, item.source) for job in jobs)


# --- the environments of a live job's ranks, from the process snapshot, and the installed versions

_PACKAGE = re.compile(r"/(?P<name>torch|nvidia_nccl_cu1\d)-(?P<version>2\.\d{1,2}\.\d{1,2})[^/]*\.dist-info/?$")
_PYTHON = re.compile(r"(/.{0,400})/bin/python[\d.]*t?")
_MOST_PREFIXES = 4


def package_patterns(job: Job) -> list[str]:
    """Return glob patterns for the package directories of a job's Pythons, whose names show the torch and NCCL
    versions."""
    prefixes: list[str] = []
    for member in job.live:
        process = member.process
        words = process.words[:1] if process else []
        if process and "VIRTUAL_ENV" in process.env:
            words += [process.exe, f"{process.env['VIRTUAL_ENV']}/bin/python"]
        prefixes += [found[1] for word in words if (found := _PYTHON.fullmatch(posixpath.normpath(word)))]
    chosen = list(dict.fromkeys(prefixes))[:_MOST_PREFIXES]
    return [
        f"{prefix}/lib/python3*/*-packages/{package}-2*.dist-info"
        for prefix in chosen
        for package in ("torch", "nvidia_nccl_cu1?")
    ]


def version_rows(paths: Iterable[str], host: str, source: str) -> list[dict[str, Any]]:
    """Return the rows of `env_versions` for the package paths found."""
    found = [(match, path) for path in paths if (match := _PACKAGE.search(path))]
    return [
        {
            "library": "torch" if match["name"] == "torch" else "nccl",
            "version": match["version"],
            "host": host,
            "quote": path[-200:],
            "source": source,
        }
        for match, path in found
    ]


def process_rows(job: Job, host: str, source: str) -> Rows:
    """Return the rows of a job's ranks and launchers."""
    rows: Rows = {"env_values": [], "launch_options": []}
    for member in job.live:
        assert member.process is not None
        found = FoundEnvironment("process", whole=True, values=list(_values(member)))
        rows["env_values"] += value_rows(found, _head(job, member, host) | {"whole": True, "pid": member.pid}, source)
    for member in _launching(job):
        found = FoundEnvironment("process")
        words = member.process.words if member.process else []
        if layers := layers_of(words):
            found.launches.append(FoundLaunch(layers, 1, True))
            head = {key: value for key, value in _head(job, member, host).items() if key != "rank"}
            rows["launch_options"] += [row | {"source_line": None} for row in option_rows(found, head, source)]
    return rows


def _launching(job: Job) -> list[JobProcess]:
    """The launchers, and one rank for the program's arguments."""
    return [*(member for member in job.members if member.role == "launcher"), *job.live[:1]]


def _head(job: Job, member: JobProcess, host: str) -> dict[str, Any]:
    label = f"rank {member.rank}" if member.rank is not None else f"pid {member.pid}"
    if member.role == "launcher":
        label = f"launcher, pid {member.pid}"
    head = {"environment": f"{host}/{member.pid}", "kind": "process", "label": label}
    return head | {"host": host, "rank": member.rank, "job": job.id}


def _values(member: JobProcess) -> Iterator[Value]:
    env = member.process.env if member.process else {}
    yield from (Value(name, value, value) for name, value in env.items() if is_of_interest(name))
