"""Findings about ranks whose process a listing (`ps`, /proc) shows as stopped, or in an uninterruptible call.

A listing names processes; NCCL's or a launcher's log says which rank a process is. One of several processes with the
same command line counts as a rank, even if nothing says which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, of_topic
from ddx_tools.analysis.nccl.world_ranks import world_ranks
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Finding, Severity, rank_list

_CODES = {"T": "rank.stopped", "t": "rank.stopped", "D": "rank.uninterruptible"}
_WORDS = {"T": "is stopped by a signal", "t": "is stopped by a debugger", "D": "sits in an uninterruptible kernel call"}


def held_process_findings(store: Store, facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding for each rank whose process a listing shows as stopped or uninterruptible.

    Uninterruptible: asleep in a kernel call that signals cannot end. Ranks with a submitted stack are left out, because
    the stack shows more.
    """
    held = of_topic(facts, "held_process")
    if not held:
        return
    owners = _ranks_by_pid(store)
    dumped = {row["rank"] for row in store.query("SELECT DISTINCT rank FROM stack_threads WHERE rank IS NOT NULL")}
    for fact in held:
        rank = _rank(fact, owners)
        if rank in dumped or (rank is None and fact.values["alike"] < 2):
            continue
        state, wchan = fact.values["state"], fact.values.get("wchan")
        sleeping = f" in {wchan}" if wchan else ""
        who = f"One of {fact.values['alike']} ranks" if rank is None else rank_list([rank])
        attributes = {
            "basis": "ps",
            "state": state,
            "wchan": wchan,
            "kernel_part": frame_rules().kernel_part(wchan),
            "moving": False if fact.values["readings"] > 1 else None,
        }
        yield Finding(
            code=_CODES[state],
            severity=Severity.FAILURE,
            ranks=[] if rank is None else [rank],
            hosts=[fact.host] if fact.host else [],
            summary=f"{who} {_WORDS[state]} (process {fact.subject}, state {state}{sleeping})",
            evidence=[fact.evidence],
            attributes={name: value for name, value in attributes.items() if value is not None},
        )


def _ranks_by_pid(store: Store) -> dict[int, set[tuple[str | None, int]]]:
    """Host and rank by process id, according to NCCL, logs, and processes."""
    rows = store.query(
        "SELECT host, pid, rank FROM log_events UNION SELECT host, pid, rank FROM ranks WHERE role = 'rank'"
    )
    owners: dict[int, set[tuple[str | None, int]]] = defaultdict(set)
    for row in (*world_ranks(store), *rows):
        if row["pid"] is not None and row["rank"] is not None:
            owners[row["pid"]].add((row["host"], row["rank"]))
    return owners


def _rank(fact: HostFactRow, owners: dict[int, set[tuple[str | None, int]]]) -> int | None:
    """The rank of a process. A pid is unique on its host; if the host is unknown, only one rank of the job may have
    it."""
    known = owners.get(int(fact.subject or 0), set())
    ranks = {rank for host, rank in known if fact.host is None or host in (None, fact.host)}
    return ranks.pop() if len(ranks) == 1 else None
