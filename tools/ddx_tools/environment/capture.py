"""Where environments and launch commands stand: the ranks of a live job, or files; and the rows of what they hold."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddx_tools.environment.live import package_patterns, process_rows, version_rows
from ddx_tools.environment.read import read_file
from ddx_tools.environment.rows import rows_of_file
from ddx_tools.errors import HostError
from ddx_tools.job_target import select_job
from ddx_tools.model import ProbeStatus
from ddx_tools.parsers.launchers.launchers import find_jobs
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows
from ddx_tools.sources.hosts.base import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import Kind, launch_text


def capture_environments(host: Host, target: Sequence[str]) -> Raw:
    """The environments of a live job's ranks, or those of files; a file that holds none is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in target if not item.isdigit()]
    if not paths:
        _capture_job(host, target, raw)
        return raw
    taken = intake_of(host, paths)
    taken.note_gaps(raw, "What this file says of the job's settings is not known.")
    for material in taken.of(Kind.LAUNCH):
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
        except HostError:  # an older bundle: nobody asked
            continue
        raw.items.append(RawItem("packages", json.dumps(found).encode(), reply.source))
    hidden = len(job.ranks) - len(job.live)
    if hidden:
        raw.status = ProbeStatus.PARTIAL
        raw.problems.append(f"{hidden} ranks of {job.id} have no environment that could be read.")


def captured_rows(raw: Raw) -> Rows:
    """Rows of `env_values`, `launch_options` and `env_versions`."""
    return merge_rows(_rows(item, raw.host) for item in raw.items)


def _rows(item: RawItem, host: str) -> Rows:
    if item.kind == "file":
        return rows_of_file(read_file(item.facts["path"], item.data), item.facts["path"], item.source)
    if item.kind == "packages":
        return {"env_versions": version_rows(map(str, json.loads(item.data)), host, item.source)}
    jobs = [job for job in find_jobs(json.loads(item.data)) if job.id == item.facts["job"]]
    return merge_rows(process_rows(job, host, item.source) for job in jobs)
