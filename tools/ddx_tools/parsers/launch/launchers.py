"""Finds distributed jobs in a process snapshot: the launchers, which process is which rank, and the ranks' workers.

Pure: a snapshot in, jobs out. `knowledge/launchers.yaml` describes launchers, ranks and workers. An unknown rank is
None; a rank that should be on this host but is not is a member without a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddx_tools.knowledge.launchers import Identity, LauncherKnowledge, launcher_knowledge
from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.process_table import ProcessTable
from ddx_tools.parsers.launch.rank_groups import LOOPBACK, RankGroup, rank_groups

_RANK_ROLES = ("rank", "unreadable", "gone")
_MAX_RANKS_PER_HOST = 4_096


@dataclass(frozen=True)
class JobProcess:
    """A process of a job, or a rank without a process."""

    role: str
    """rank | launcher | dataloader_worker | compile_worker | helper | unreadable | gone, as in table `ranks`."""
    process: Process | None = None
    rank: int | None = None
    """The global rank; for a worker, that of its rank. None if unknown."""
    local_rank: int | None = None
    candidates: tuple[int, ...] = ()
    """The processes that may be this rank, if it is unknown which one is; they are members without a rank."""

    @property
    def pid(self) -> int | None:
        """Process id; None for a rank without a process."""
        return self.process.pid if self.process else None


@dataclass(frozen=True)
class Job:
    """A distributed job, as seen on one host."""

    launcher: str
    root_pid: int
    """The process that the job's other processes on this host descend from; without one, its first rank."""
    world_size: int | None
    master: str | None
    """MASTER_ADDR:MASTER_PORT from the ranks' environment."""
    members: tuple[JobProcess, ...]

    @property
    def id(self) -> str:
        """The job's id: `<launcher>:<pid>`."""
        return f"{self.launcher}:{self.root_pid}"

    @property
    def ranks(self) -> list[JobProcess]:
        """The members that are ranks, sorted by rank; unknown ranks last, sorted by pid."""
        own = [member for member in self.members if member.role in _RANK_ROLES]
        candidates = {pid for member in own for pid in member.candidates}
        own = [member for member in own if member.rank is not None or member.pid not in candidates]
        return sorted(own, key=lambda m: (m.rank is None, m.rank or 0, m.pid or 0))

    @property
    def live(self) -> list[JobProcess]:
        """The ranks with a readable process."""
        return [member for member in self.ranks if member.role == "rank"]

    @property
    def run_dir(self) -> str | None:
        """DDX_RUN_DIR, if `ddx run` started the job."""
        directories = (m.process.env.get("DDX_RUN_DIR") for m in self.members if m.process)
        return next((directory for directory in directories if directory), None)

    def member(self, pid: int) -> JobProcess | None:
        """Return the member with this process id; None if there is none."""
        return next((member for member in self.members if member.pid == pid), None)

    def is_named_by(self, pid: int) -> bool:
        """Return whether this pid is a member, or the process that started the launcher (`ddx run`, a shell script)."""
        if self.member(pid):
            return True
        root = self.member(self.root_pid)
        return bool(root and root.role == "launcher" and root.process and root.process.ppid == pid)


def find_jobs(snapshot: Mapping[str, Any]) -> list[Job]:
    """Return all distributed jobs in a snapshot, sorted by root process. Raises UnreadableInput if it is not a
    snapshot."""
    table, knowledge = ProcessTable(snapshot), launcher_knowledge()
    groups = rank_groups(table, knowledge)
    jobs = [_Assembly(table, knowledge, group).job() for group in groups]
    taken = {member.pid for job in jobs for member in job.members}
    for process in table.processes.values():
        launcher = knowledge.launcher(process)
        if launcher and knowledge.starts_only_ranks(launcher) and process.pid not in taken and not process.is_dead:
            group = RankGroup(launcher, [process])
            jobs.append(_Assembly(table, knowledge, group).job())
            taken |= {member.pid for member in jobs[-1].members}
    return sorted(jobs, key=lambda job: job.root_pid)


class _Assembly:
    """Builds one job from its ranks: adds launchers, workers, and the ranks that are not visible."""

    def __init__(self, table: ProcessTable, knowledge: LauncherKnowledge, group: RankGroup) -> None:
        self._table = table
        self._knowledge = knowledge
        self._group = group
        self._members: dict[int, JobProcess] = {}

    def job(self) -> Job:
        """Return the job with all its members."""
        group = self._group
        for process, identity in group.ranks:
            self._add(JobProcess("rank", process, identity.rank, identity.local_rank))
        for process, identity in group.ranks:
            self._add_workers(process, identity.rank)
        roots = group.roots or self._common_parent()
        for root in roots:
            self._add(JobProcess("launcher", root))
        unseen = self._rank_like_below(roots)
        for root in group.roots:
            self._add_rest_below(root, unseen)
        self._add_orphans()
        missing = self._missing(unseen)
        root_pid = roots[0].pid if roots else min(process.pid for process, _ in group.ranks)
        return Job(group.launcher, root_pid, group.world_size, group.master, (*self._members.values(), *missing))

    def _worker_role(self, process: Process) -> str | None:
        return self._knowledge.worker_role(process, forked=self._table.is_fork(process))

    def _add(self, member: JobProcess) -> None:
        if member.pid is not None:
            self._members.setdefault(member.pid, member)

    def _add_workers(self, rank_process: Process, rank: int | None) -> None:
        for process in self._table.descendants(rank_process.pid):
            role = self._worker_role(process)
            if role is None:
                role = "dataloader_worker" if process.command == rank_process.command else "helper"
            self._add(JobProcess(role, process, rank))

    def _add_rest_below(self, root: Process, unseen: list[Process]) -> None:
        """Add intermediate launchers, wrappers and resource trackers."""
        rank_like = {process.pid for process in unseen}
        for process in self._table.descendants(root.pid):
            if process.pid not in rank_like:
                role = "launcher" if self._knowledge.launcher(process) else self._worker_role(process)
                self._add(JobProcess(role or "helper", process))

    def _add_orphans(self) -> None:
        """Add workers that outlived their rank; they still have its variables."""
        world = {(identity.master, identity.world_size) for _, identity in self._group.ranks if identity.master}
        for process in self._table.processes.values():
            identity = self._knowledge.identity(process)
            role = self._worker_role(process)
            if role and identity and (identity.master, identity.world_size) in world:
                self._add(JobProcess(role, process, identity.rank))

    def _common_parent(self) -> list[Process]:
        """The common parent of ranks without a launcher; only several of them, alive or dead, identify it."""
        parents = {process.ppid for process, _ in self._group.ranks}
        parent = self._table.get(parents.pop()) if len(parents) == 1 else None
        if parent and len(self._group.ranks) + len(self._rank_like_below([parent])) > 1:
            return [parent]
        return []

    def _rank_like_below(self, roots: list[Process]) -> list[Process]:
        """Siblings of ranks that are dead or unreadable: each may be an invisible rank."""
        parents = {process.ppid for process, _ in self._group.ranks} | {root.pid for root in roots}
        return [
            process
            for parent in sorted(parents & self._table.processes.keys())
            for process in self._table.children(parent)
            if not process.readable
            and process.pid not in self._members
            and self._knowledge.is_python(process)
            and not self._knowledge.launcher(process)
            and not self._worker_role(process)
        ]

    def _missing(self, unseen: list[Process]) -> Iterator[JobProcess]:
        """The ranks that belong on this host but have no readable process."""
        dead = [process for process in unseen if process.is_dead]
        unreadable = [process for process in unseen if not process.is_dead]
        expected = self._expected()
        missing = sorted(expected - self._group.numbers()) if expected else []
        if len(missing) == len(unseen) == 1:
            yield JobProcess("unreadable" if unreadable else "gone", unseen[0], missing[0])
            return
        role, candidates = ("unreadable", unreadable) if unreadable else ("gone", dead)
        for rank in missing:
            yield JobProcess(role, rank=rank, candidates=tuple(process.pid for process in candidates))
        if missing or expected is None:
            yield from (JobProcess("gone", process) for process in dead)
            yield from (JobProcess("unreadable", process) for process in unreadable)

    def _expected(self) -> set[int] | None:
        """The ranks that belong on this host; None if unknown."""
        identities = [identity for _, identity in self._group.ranks]
        world = self._group.world_size
        if not identities or world is None or any(identity.rank is None for identity in identities):
            return None
        host = (self._group.master or "").rpartition(":")[0]
        if LOOPBACK.fullmatch(host) or any(i.local_world_size == world or i.hosts == 1 for i in identities):
            spans = {range(world)}
        else:
            spans = {_local_ranks(identity) for identity in identities}
        if any(len(span) > _MAX_RANKS_PER_HOST or span.start < 0 or span.stop > world for span in spans):
            return None
        return {rank for span in spans for rank in span} if all(spans) else None


def _local_ranks(identity: Identity) -> range:
    """The ranks of the host, or of the part that one launcher serves; empty if they are not consecutive."""
    if not identity.contiguous or identity.rank is None or identity.local_rank is None:
        return range(0)
    first = identity.rank - identity.local_rank
    return range(first, first + (identity.local_world_size or 0))
