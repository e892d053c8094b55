"""Findings about the missing parts of a starting job: hosts without a launcher, ranks without a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ddx_tools.analysis.ranks.job_rows import by_job
from ddx_tools.analysis.ranks.process_words import environment_words
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.knowledge.launch_facts import is_loopback
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list

_HOSTS_APART_S = 30.0
"""Hosts start one after the other, and importing torch takes about ten seconds before a launcher appears."""
_RANKS_APART_S = 10.0
"""The processes of one host start at nearly the same time."""
_RANK_ROLES = ("rank", "unreadable", "gone")

Row = dict[str, Any]


def not_started(store: Store) -> list[Finding]:
    """Return the findings about hosts and ranks that were never started, from `ranks`, stacks and captures of other
    hosts."""
    jobs = by_job(store)
    rows = [row for members in jobs for row in members]
    return [*_hosts(store, jobs), *(finding for members in jobs for finding in _ranks(store, members, rows))]


def _finding(
    code: str, rows: Sequence[Row], quote: Callable[[Row], str], summary: str, ranks: Iterable[int] = (), **facts: Any
) -> Finding:
    """A finding about processes of some hosts; `quote` gives the evidence text of each row."""
    return Finding(
        code=code,
        severity=Severity.WARNING,
        ranks=sorted(ranks),
        hosts=sorted({row["host"] for row in rows}),
        summary=summary,
        evidence=[Evidence(source=row["source"], quote=quote(row)) for row in rows[:8]],
        attributes={**facts, "basis": "processes"},
    )


def _command(row: Row) -> str:
    return (row["command"] or "")[:200]


# --- hosts


def _hosts(store: Store, jobs: Sequence[Sequence[Row]]) -> Iterator[Finding]:
    """Launchers that wait for launchers on other hosts, grouped by rendezvous endpoint."""
    meetings: dict[tuple[int, str | None], list[Row]] = {}
    running: set[tuple[int, str | None]] = set()
    for members in jobs:
        agent = next((row for row in reversed(members) if row["role"] == "launcher" and row["nodes"]), None)
        if agent is None:
            continue
        meeting = (agent["nodes"], agent["endpoint"])
        if any(row["role"] in _RANK_ROLES for row in members):
            running.add(meeting)
        elif (agent["wall_s"] or 0.0) >= _HOSTS_APART_S:
            meetings.setdefault(meeting, []).append(agent)
    idle = _idle_hosts(store)
    for (nodes, endpoint), agents in meetings.items():
        if (nodes, endpoint) not in running:
            yield from _of_meeting(nodes, endpoint, agents, idle)


def _idle_hosts(store: Store) -> list[Row]:
    """Hosts that were captured whole, not for a single process, and run no job."""
    return store.query(
        "SELECT host, min(source) AS source FROM host_facts WHERE topic = 'look' AND facts->>'$.about' = '[]' "
        "AND host NOT IN (SELECT host FROM ranks) GROUP BY host ORDER BY host"
    )


def _of_meeting(nodes: int, endpoint: str | None, agents: Sequence[Row], idle: Sequence[Row]) -> Iterator[Finding]:
    hosts = sorted({agent["host"] for agent in agents})
    apart = endpoint is not None and is_loopback(endpoint)
    joined = max(sum(agent["host"] == host for agent in agents) for host in hosts) if apart else len(agents)
    waited_s = min(agent["wall_s"] for agent in agents)
    if joined >= nodes:
        yield _do_not_meet(hosts, endpoint, waited_s, agents)
        return
    verb = "waits" if len(hosts) == 1 else "wait"
    where = f" at {endpoint}" if endpoint else ""
    each = ", which is each host's own address" if apart else ""
    seen = "1 is" if joined == 1 else f"{joined} are"
    yield _finding(
        "startup.missing_ranks",
        agents,
        _command,
        f"torchrun on {', '.join(hosts)} {verb} for {nodes} hosts{where}{each}; {seen} seen, and no rank has started "
        f"for {waited_s:.0f} s.",
        joined=joined,
        expected=nodes,
        endpoint=endpoint,
        stage="rendezvous",
        waited_s=waited_s,
        apart=apart,
        others_unseen=not apart and len(agents) + len(idle) < nodes,
    )
    for host in idle if not apart else ():
        said = f"{host['host']} runs no launcher and no rank of a distributed job."
        yield _finding("startup.host_without_job", [host], lambda _: "", said, endpoint=endpoint)


def _do_not_meet(hosts: Sequence[str], endpoint: str | None, waited_s: float, agents: Sequence[Row]) -> Finding:
    address, _, port = (endpoint or "").rpartition(":")
    where = f" at {endpoint}" if endpoint else ""
    return _finding(
        "startup.launchers_apart",
        agents,
        _command,
        f"The launchers run on all hosts ({', '.join(hosts)}), but none has started a rank for {waited_s:.0f} s: they "
        f"do not find each other{where}.",
        endpoint=endpoint,
        address=address.strip("[]") or None,
        port=int(port) if port.isascii() and port.isdigit() else None,
        waited_s=waited_s,
    )


# --- ranks


def _ranks(store: Store, members: Sequence[Row], everywhere: Sequence[Row]) -> Iterator[Finding]:
    """Ranks of this host that have no process, not even a dead one, while all other ranks are still initialising."""
    live = [row for row in members if row["role"] == "rank"]
    absent = [row for row in members if row["role"] in _RANK_ROLES and row["role"] != "rank"]
    never = bool(absent) and all(row["role"] == "gone" and row["pid"] is None for row in absent)
    waited_s = min((row["wall_s"] or 0.0 for row in live), default=0.0)
    if not never or waited_s < _RANKS_APART_S or not _all_on_their_way(store, live):
        return
    missing = sorted(row["rank"] for row in absent if row["rank"] is not None)
    yield _short_of(live, missing, waited_s, apart=_is_apart(live, set(missing), everywhere))


def _short_of(live: Sequence[Row], missing: list[int], waited_s: float, *, apart: bool) -> Finding:
    size, host, master = (live[0][name] for name in ("world_size", "host", "master"))
    verb = "has" if len(missing) == 1 else "have"
    own = f" {master} is each host's own address." if apart else ""
    return _finding(
        "startup.missing_ranks",
        live,
        environment_words,
        f"WORLD_SIZE={size}, but only {len(live)} ranks have been running on {host} for {waited_s:.0f} s; "
        f"{rank_list(missing)} {verb} no process there, not even an ended one, and no rank got past "
        f"initialisation.{own}",
        ranks=(row["rank"] for row in live if row["rank"] is not None),
        joined=len(live),
        expected=size,
        endpoint=master,
        stage="store",
        waited_s=waited_s,
        missing=missing,
        minority=len(missing) < len(live),
        apart=apart,
    )


def _is_apart(live: Sequence[Row], missing: set[int], everywhere: Sequence[Row]) -> bool:
    """Whether the job has ranks on other hosts, although its ranks here use a loopback address as their master."""
    here = live[0]
    if not here["master"] or not is_loopback(here["master"]):
        return False
    elsewhere = [
        row
        for row in everywhere
        if row["role"] == "rank" and row["host"] != here["host"] and row["rank"] in missing
        and (row["master"], row["world_size"]) == (here["master"], here["world_size"])
    ]  # fmt: skip
    counted_on = any(row["local_rank"] is not None and row["local_rank"] < row["rank"] for row in live)
    return bool(elsewhere) or counted_on


def _all_on_their_way(store: Store, live: Sequence[Row]) -> bool:
    """Whether at least half of the ranks were sampled, and each of these still imports or forms its first process
    group."""
    host, job_pids = live[0]["host"], {row["pid"] for row in live}
    looks = store.query(
        "SELECT pid, arg_max(activity, snapshot) AS activity, arg_max(operation, snapshot) AS operation "
        "FROM stack_threads WHERE is_main AND role = 'rank' AND host = ? GROUP BY pid",
        [host],
    )
    seen = [look for look in looks if look["pid"] in job_pids]
    if 2 * len(seen) < len(live) or store.query("SELECT 1 FROM outputs WHERE stepped AND host = ?", [host]):
        return False
    early = frame_rules().starting
    return all(look["activity"] in early or look["operation"] == "init_process_group" for look in seen)
