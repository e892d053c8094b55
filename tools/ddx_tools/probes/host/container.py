"""Findings about the container or cgroup of a job: memory headroom, CPU quota, affinity, process limits, ptrace."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, finding, gibibytes, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_LITTLE_ROOM = 0.05
_SMALL_PART = 0.9
_THROTTLED = 0.1
"""Share of scheduling periods in which a cgroup used up its quota before the period ended."""
_LEAST_PERIODS = 5
_MANY = 0.9

_SCOPES = {
    1: "only root, or a parent of the process, may read its stack",
    2: "only root may read the stack of a process",
    3: "no user may read the stack of a process until the next boot",
}
"""Documentation/admin-guide/LSM/Yama.rst."""


def container_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield all container findings, from the kernel's files that a live capture, or a user with grep, has read."""
    hosts = by_host(facts)
    free = sorted(host for host, of_host in hosts.items() if host and _is_free(of_host))
    for of_host in hosts.values():
        yield from _memory_room(of_topic(of_host, "cgroup"))
        yield from _less_than_the_host(of_topic(of_host, "cgroup"), of_topic(of_host, "memory"))
        yield from _quota(of_topic(of_host, "cpu_quota"), of_topic(of_host, "rank_process"), free)
        yield from _affinity(of_host)
        yield from _process_count(of_topic(of_host, "pids"))
        yield from _open_files(of_topic(of_host, "rank_process"))
        yield from _stacks(of_host)


def _memory_room(cgroups: list[HostFactRow]) -> Iterator[Finding]:
    for group in cgroups:
        limit, used = group.values.get("limit_bytes"), group.values.get("used_bytes")
        if limit and used is not None and limit - used < _LITTLE_ROOM * limit:
            left = gibibytes(max(0, limit - used))
            words = f"The cgroup uses {gibibytes(used)} of its {gibibytes(limit)} limit: {left} left."
            yield finding(
                "limits.resource",
                Severity.WARNING,
                [group],
                words,
                what="cgroup_memory",
                place=group.subject,
                limit_bytes=limit,
                used_bytes=used,
            )


def _less_than_the_host(cgroups: list[HostFactRow], memories: list[HostFactRow]) -> Iterator[Finding]:
    """A container limit below the host's memory: the container may not use all the memory that `free` shows in it."""
    total = max((memory.values.get("total_bytes") or 0 for memory in memories), default=0)
    limited = [group for group in cgroups if 0 < group.values.get("limit_bytes", 0) < _SMALL_PART * total]
    for group in limited[:1]:
        limit = group.values["limit_bytes"]
        words = f"The cgroup is limited to {gibibytes(limit)} of the host's {gibibytes(total)}."
        yield finding(
            "limits.resource",
            Severity.INFO,
            [group, *memories[:1]],
            words,
            what="cgroup_memory_below_host",
            place=group.subject,
            limit_bytes=limit,
        )


def _quota(readings: list[HostFactRow], ranks: list[HostFactRow], free: list[str]) -> Iterator[Finding]:
    """A CPU quota that throttles processes. `free`: hosts of the job that have no quota, or never use it up."""
    numbers = sorted(one.values["rank"] for one in ranks if "rank" in one.values)
    for path, of_group in _by_subject(readings).items():
        cpus = next((one.values["cpus"] for one in of_group if "cpus" in one.values), None)
        share, between = _share_held_back(of_group)
        if cpus is None or share < _THROTTLED:
            continue
        when = "between two readings" if between else "since its creation"
        per_rank = f", for {len(ranks)} ranks" if ranks else ""
        unlike = f" No quota throttles the ranks on {', '.join(free[:4])}." if free else ""
        yield finding(
            "limits.cpu_throttled",
            Severity.WARNING if between else Severity.NOTICE,
            of_group,
            f"The cgroup is limited to {cpus:g} CPUs{per_rank}, and was throttled in {share:.0%} of its periods {when}."
            + unlike,
            cpus=cpus,
            share=round(share, 3),
            how="between_readings" if between else "since_made",
            place=path,
            free_hosts=free,
            ranks=numbers,
        )


def _by_subject(readings: list[HostFactRow]) -> dict[str | None, list[HostFactRow]]:
    return gathered((reading.subject, reading) for reading in readings)


def _share_held_back(readings: list[HostFactRow]) -> tuple[float, bool]:
    """The share of a cgroup's periods in which it was throttled, and whether it is between two readings or since
    creation."""
    counted = [one.values for one in readings if {"periods", "throttled"} <= set(one.values)]
    if not counted:
        return 0.0, False
    first, last = counted[0], counted[-1]
    between = len(counted) > 1 and last["periods"] - first["periods"] >= _LEAST_PERIODS
    periods = last["periods"] - (first["periods"] if between else 0)
    held = last["throttled"] - (first["throttled"] if between else 0)
    return held / periods if periods >= _LEAST_PERIODS else 0.0, between


def _is_free(of_host: list[HostFactRow]) -> bool:
    """Whether the host runs ranks and its CPU quotas were read, and none throttles them."""
    groups = _by_subject(of_topic(of_host, "cpu_quota")).values()
    return bool(groups and of_topic(of_host, "rank_process")) and all(
        _share_held_back(of_group)[0] < _THROTTLED for of_group in groups
    )


def _affinity(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Ranks that may run on fewer CPUs than there are ranks, although the machine has more."""
    ranks = {fact.subject: fact for fact in of_topic(facts, "rank_process")}
    pinned = [one for one in of_topic(facts, "process") if one.subject in ranks and "cpus_allowed" in one.values]
    sets = {one.values["cpus_allowed"]: one.values["cpus"] for one in pinned}
    own = [one for one in of_topic(facts, "process") if one.subject not in ranks]
    most = max((one.values.get("cpus", 0) for one in own), default=0)
    if len(pinned) < 2 or len(sets) != 1:
        return
    (allowed, cpus), *_ = sets.items()
    if cpus < len(pinned) and cpus < most:
        numbers = sorted(ranks[one.subject].values["rank"] for one in pinned if "rank" in ranks[one.subject].values)
        words = f"{len(pinned)} ranks may run only on CPU {allowed}; the machine has more ({most} for ddx)."
        yield finding(
            "limits.cpu_affinity", Severity.NOTICE, pinned, words, ranks=numbers, cpus=cpus, cpus_allowed=allowed
        )


def _process_count(counts: list[HostFactRow]) -> Iterator[Finding]:
    for count in counts:
        current, most = count.values["current"], count.values["most"]
        if current >= _MANY * most:
            words = f"The cgroup has {current} of its limit of {most} processes and threads."
            yield finding("limits.resource", Severity.WARNING, [count], words, what="processes", place=count.subject)


def _open_files(ranks: list[HostFactRow]) -> Iterator[Finding]:
    """Ranks close to their open-file limit: opening the next file, socket or shared tensor fails."""
    for rank in ranks:
        held, most = rank.values.get("open_files"), rank.values.get("open_files_limit")
        if held is None or most is None or most <= 0 or held < _MANY * most:
            continue
        number = rank.values.get("rank")
        words = f"Rank {number} has {held} open files; its limit is {most} (ulimit -n)."
        yield finding(
            "limits.resource",
            Severity.WARNING,
            [rank],
            words,
            what="open_files",
            place=rank.subject,
            ranks=[] if number is None else [number],
        )


def _stacks(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Whether `ddx stacks` can work: Yama's scope, and whether ddx may trace other users' processes."""
    own = next((one for one in of_topic(facts, "process") if one.subject == "self"), None)
    if own is None or own.values.get("sys_ptrace") is None:
        return
    scope_fact = next(iter(of_topic(facts, "ptrace")), None)
    scope = scope_fact.values["scope"] if scope_fact else 0  # a kernel without Yama lacks this file
    capable = own.values["sys_ptrace"]
    others = sorted(
        int(str(rank.subject))
        for rank in of_topic(facts, "rank_process")
        if rank.values.get("uid") not in (None, own.values.get("uid"))
    )
    if scope >= 3 or (scope in _SCOPES and not capable):
        words, why = f"Stacks cannot be read: {_SCOPES.get(scope, 'the kernel forbids it')}.", "yama"
    elif others and not capable:
        words, why = f"The ranks belong to another user: ddx cannot read the stacks of {len(others)}.", "owner"
    else:
        return
    places = [fact for fact in (scope_fact, own) if fact]
    yield finding(
        "host.stacks_unreadable",
        Severity.NOTICE,
        places,
        words,
        scope=scope,
        capable=capable,
        why=why,
        pids=others[:64],
    )
