"""Finds the ranks in a process snapshot, and groups those that belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.knowledge.launchers import Identity, LauncherKnowledge, master_of
from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.process_table import ProcessTable

LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1|\[::1\]")
"""Addresses of a job whose ranks all run on one host."""


@dataclass
class RankGroup:
    """Ranks that belong together, and the processes they descend from."""

    launcher: str
    roots: list[Process] = field(default_factory=list)
    ranks: list[tuple[Process, Identity]] = field(default_factory=list)

    @property
    def world_size(self) -> int | None:
        """The number of ranks the job expects."""
        return next((identity.world_size for _, identity in self.ranks if identity.world_size), None)

    @property
    def master(self) -> str | None:
        """MASTER_ADDR:MASTER_PORT of the ranks."""
        return next((identity.master for _, identity in self.ranks if identity.master), None)

    def numbers(self) -> set[int]:
        """The known rank numbers."""
        return {identity.rank for _, identity in self.ranks if identity.rank is not None}


def rank_groups(table: ProcessTable, knowledge: LauncherKnowledge) -> list[RankGroup]:
    """Find the ranks among the processes of a host and return them by job.

    Ranks belong to one job if they share a launcher process, master address and world size, or if one Python program
    spawned them. Groups with one address and different ranks are merged.
    """
    spawned = _spawned_groups(table, knowledge)
    taken = {process.pid for group in spawned for process, _ in group.ranks}
    taken |= {root.pid for group in spawned for root in group.roots}
    taken |= {below.pid for group in spawned for process, _ in group.ranks for below in table.descendants(process.pid)}
    groups: dict[tuple[Any, ...], RankGroup] = {}
    for process, identity in _named_ranks(table, knowledge):
        if process.pid in taken:
            continue
        launcher, root = _launcher_above(process, identity, table, knowledge)
        place = root.pid if root else -process.ppid
        key = (launcher, place, identity.master, identity.world_size)
        groups.setdefault(key, RankGroup(launcher, [root] if root else [])).ranks.append((process, identity))
    return _merged(spawned + list(groups.values()))


def _named_ranks(table: ProcessTable, knowledge: LauncherKnowledge) -> Iterator[tuple[Process, Identity]]:
    """Processes with a rank in their environment whose ancestors do not have the same one: children inherit it."""

    def says(process: Process) -> Identity | None:
        if not knowledge.is_python(process) or knowledge.launcher(process) or process.is_dead:
            return None
        return knowledge.identity(process)

    for process in table.processes.values():
        identity = says(process)
        if identity is None or _is_orphaned_worker(process, table, knowledge):
            continue
        inherited = identity.rank is not None and any(says(above) == identity for above in table.ancestors(process))
        if not inherited:
            yield process, identity


def _is_orphaned_worker(process: Process, table: ProcessTable, knowledge: LauncherKnowledge) -> bool:
    """Whether a process is a worker whose rank is gone. A multiprocessing child may be a rank as long as its parent
    lives."""
    if not knowledge.worker_role(process, forked=table.is_fork(process)):
        return False
    return process.ppid not in table.processes or not knowledge.is_spawned(process)


def _launcher_above(
    process: Process, identity: Identity, table: ProcessTable, knowledge: LauncherKnowledge
) -> tuple[str, Process | None]:
    """The kind of the nearest launcher above a rank, and the topmost process of that launch."""
    name, root = "", None
    for above in table.ancestors(process):
        found = knowledge.launcher(above)
        if found and not name:
            name, root = found, above
        elif found and (found == name or (knowledge.starts_only_ranks(name) and knowledge.starts_only_ranks(found))):
            root = above
    return name or identity.launcher, root


def _spawned_groups(table: ProcessTable, knowledge: LauncherKnowledge) -> list[RankGroup]:
    """Children that one Python program started with multiprocessing and that form a process group.

    Nothing outside them shows their rank. MASTER_ADDR, inherited from the program, or connections between them show
    that they are ranks; data-loader workers have neither.
    """
    groups = []
    for parent in table.processes.values():
        said = knowledge.identity(parent)
        if not knowledge.is_python(parent) or knowledge.launcher(parent) or (said and said.launcher == "env"):
            continue
        children = [child for child in table.children(parent.pid) if _may_be_spawned_rank(child, table, knowledge)]
        ranks = [child for child in children if "MASTER_ADDR" in child.env or _is_connected(child, children)]
        if ranks:
            root = next((p for p in (parent, *table.ancestors(parent)) if not knowledge.is_spawned(p)), parent)
            numbers = _numbers_by_start(ranks, parent, table, knowledge)
            groups.append(RankGroup("spawn", [root], [(rank, _spawned(rank, numbers)) for rank in ranks]))
    return groups


def _spawned(rank: Process, numbers: Mapping[int, int]) -> Identity:
    number, size = numbers.get(rank.pid), len(numbers) or None
    return Identity("spawn", number, number, size, local_world_size=size, master=master_of(rank.env))


def _numbers_by_start(
    ranks: list[Process], parent: Process, table: ProcessTable, knowledge: LauncherKnowledge
) -> dict[int, int]:
    """Rank numbers by pid: `torch.multiprocessing.spawn`, and a loop over ranks, start them in their order.

    Empty where that order may not be the ranks': another host has ranks, too, or another child, which may be a rank
    before its first connection or after its death, was started among them.
    """
    env = {**parent.env, **ranks[0].env}
    size = str(len(ranks))
    if not LOOPBACK.fullmatch(env.get("MASTER_ADDR", "localhost")) or env.get("WORLD_SIZE", size) != size:
        return {}
    started = sorted(table.children(parent.pid), key=lambda child: (child.row.get("create_time") or 0, child.pid))
    pids = {rank.pid for rank in ranks}
    numbers = {pid: number for number, pid in enumerate(child.pid for child in started if child.pid in pids)}
    places = [place for place, child in enumerate(started) if child.pid in numbers]
    among = [child for child in started[places[0] : places[-1]] if child.pid not in numbers]
    may_be_ranks = (child for child in among if child.is_dead or knowledge.is_python(child))
    if any(knowledge.worker_role(child, forked=table.is_fork(child)) != "helper" for child in may_be_ranks):
        return {}
    return numbers


def _may_be_spawned_rank(child: Process, table: ProcessTable, knowledge: LauncherKnowledge) -> bool:
    forked = table.is_fork(child)
    if not child.readable or "RANK" in child.env or child.name == "pt_data_worker":
        return False
    by_multiprocessing = forked or knowledge.is_spawned(child)
    return by_multiprocessing and knowledge.worker_role(child, forked=forked) in (None, "dataloader_worker")


def _is_connected(process: Process, siblings: list[Process]) -> bool:
    """Whether this process has a connection to a sibling."""
    others = {pair for sibling in siblings if sibling is not process for pair in sibling.tcp}
    return any((there, here) in others for here, there in process.tcp)


def _merged(groups: list[RankGroup]) -> list[RankGroup]:
    """The groups, merged into one job if they use the same address and have different ranks of the same world.

    This covers ranks started one by one from several shells, and several launchers on one host.
    """
    merged: list[RankGroup] = []
    for group in sorted(groups, key=lambda group: min(process.pid for process, _ in group.ranks)):
        same = next((other for other in merged if _are_one_job(group, other)), None)
        if same is None:
            merged.append(group)
        else:
            same.ranks += group.ranks
            same.roots += [root for root in group.roots if root not in same.roots]
    return merged


def _are_one_job(group: RankGroup, other: RankGroup) -> bool:
    if not (group.master and group.world_size and group.numbers()):
        return False
    same_world = (group.master, group.world_size) == (other.master, other.world_size)
    return same_world and not group.numbers() & other.numbers()
