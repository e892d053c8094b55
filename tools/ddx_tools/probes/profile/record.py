"""Profiles a live job: torch's own profiler in ranks that `ddx run` started, and samples of all ranks' stacks.

Samples need no preparation: py-spy reads the memory of the process and pauses it for a few milliseconds, 25 times a
second.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model.errors import HostError, NotFound
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.sources import kinds
from ddx_tools.sources.host import Host, ask_together
from ddx_tools.sources.hosts.debug_endpoints import ask_endpoints
from ddx_tools.sources.job_target import job_on
from ddx_tools.sources.raw import Raw, RawItem

_WHY = "where that rank spends its time is unknown"
_MOST_BYTES = 1 << 40
_WRITING_S = 60
_AT_ONCE = 64


def record_job(host: Host, raw: Raw, target: Sequence[str], seconds: float) -> None:
    """Add traces and samples of a job's ranks on this host, each `seconds` long."""
    job = job_on(host, target)
    ranks = [member for member in job.live if member.pid and member.rank is not None]
    if job.run_dir:
        _traces(host, raw, job, ranks, seconds)
    for member, reply in ask_together(lambda member: host.sample(member.pid or 0, seconds), ranks, _AT_ONCE):
        what = f"samples of rank {member.rank} (pid {member.pid})"
        if isinstance(reply, HostError):
            raw.failed(what, reply, _WHY)
        else:
            facts = {"path": what, "rank": member.rank}
            raw.items.append(RawItem(kinds.TextKind.SAMPLES, reply.data, reply.source or what, facts))
    raw.searched.append(f"{len(ranks)} ranks of {job.id} on {host.name}, {seconds:g} s")


def record_endpoints(host: Host, raw: Raw, endpoints: Sequence[str], seconds: float) -> None:
    """Add the traces that torch.distributed.debug servers take of their ranks."""
    asked = f"torch_profile?duration={seconds:g}"
    for rank, url, reply in ask_endpoints(host, endpoints, asked, seconds + _WRITING_S):
        if isinstance(reply, HostError):
            raw.failed(f"trace of rank {rank} at {url}", reply, _WHY)
        else:
            raw.items.append(RawItem(FileKind.TRACE, reply.data, reply.source or url, {"path": url, "rank": rank}))


def _traces(host: Host, raw: Raw, job: Job, ranks: Sequence[JobProcess], seconds: float) -> None:
    """Take the traces of all ranks at the same time, so that each shared operation is in all of them."""
    begun: dict[int, str] = {}
    for member in ranks:
        rank, request = member.rank or 0, {"op": "profile", "seconds": seconds}
        try:
            reply = host.ask_agent(job.run_dir or "", rank, member.pid or 0, request)
            begun[rank] = f"{job.run_dir}/ranks/{reply.header['file']}"
        except (HostError, KeyError) as error:
            failure = error if isinstance(error, HostError) else HostError("its agent is older than this ddx", "")
            raw.failed(f"trace of rank {rank}", failure, _WHY)
    if begun:
        host.pause(seconds)
    waited_s = 0
    for rank, path in begun.items():
        while True:
            try:
                trace = host.locate(path, max_bytes=_MOST_BYTES, suffix="json")
                facts = {"path": path, "rank": rank}
                raw.items.append(RawItem(FileKind.TRACE, trace.data, trace.source or path, facts, trace.file))
                break
            except HostError as error:
                if waited_s >= _WRITING_S or not isinstance(error, NotFound):
                    raw.failed(path, error, _WHY)
                    break
                host.pause(1)
                waited_s += 1
