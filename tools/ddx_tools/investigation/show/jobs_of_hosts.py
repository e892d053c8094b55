"""Names the job that an answer is about, on hosts that run several jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ddx_tools.analysis.ranks.job_rows import by_job
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Finding

_LONGEST_COMMAND = 60
_MOST_NAMED = 3


class JobThere(NamedTuple):
    """A job on a host with several."""

    id: str
    words: str
    """The name by which a person knows it: the script that it runs."""
    pids: frozenset[int]


JobsByRank = Mapping[tuple[str, int], Sequence[JobThere]]
"""For each host and rank, the jobs that have that rank there."""


def jobs_by_rank(store: Store) -> JobsByRank:
    """Map (host, rank) to the jobs that have that rank there, for hosts that run several jobs.

    Empty if every host runs at most one job.
    """
    by_host: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for members in by_job(store):
        if members[0]["host"] and any(row["role"] == "rank" for row in members):
            by_host[members[0]["host"]].append(members)
    found: dict[tuple[str, int], list[JobThere]] = defaultdict(list)
    for host, jobs in by_host.items():
        if len(jobs) < 2:
            continue
        for members in jobs:
            job = JobThere(members[0]["job"], _words(members), frozenset(row["pid"] for row in members if row["pid"]))
            for rank in sorted({row["rank"] for row in members if row["rank"] is not None}):
                found[host, rank].append(job)
    return found


def headline_with_job(said: Diagnosis, jobs: JobsByRank, findings: Sequence[Finding]) -> str:
    """The headline, extended by the job's name if blamed ranks run on a host with several jobs."""
    blamed = {rank for suspect in said.suspects for rank in suspect.ranks} or set(said.culprits.ranks)
    hosts = {host for suspect in said.suspects for host in suspect.hosts} or set(said.culprits.hosts)
    meant = {
        one: host for (host, rank), some in jobs.items() if rank in blamed and host in (hosts or {host}) for one in some
    }
    if not meant:
        return said.headline
    about = [finding.attributes for finding in findings if finding.ranks and set(finding.ranks) <= blamed]
    pids, ids = {told.get("pid") for told in about}, {told.get("job") for told in about}
    by_pid = {one: host for one, host in meant.items() if one.pids & pids}
    certain = by_pid or {one: host for one, host in meant.items() if one.id in ids} or meant
    names = [f"{one.words} ({one.id} on {host})" for one, host in certain.items()]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    which = "job" if len(certain) == 1 else "one of the jobs"
    return f"{said.headline} [{which} {', '.join(names[:_MOST_NAMED])}{more}]"


def _words(members: Sequence[Mapping[str, Any]]) -> str:
    """The script that a job runs, or else the beginning of its command."""
    command = next((row["command"] for row in members if row["role"] == "rank" and row["command"]), "") or ""
    scripts = [word for word in command.split() if word.endswith(".py")]
    return PurePosixPath(scripts[0]).name if scripts else command[:_LONGEST_COMMAND] or "unnamed"
