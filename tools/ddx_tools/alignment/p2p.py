"""Point-to-point operations: a send without a receive, and ranks that wait for each other in a circle.

Gloo records none (torch 2.13); NCCL writes `send 1->2` in ranks of the group, and both ends have their own
counters, so pending operations are paired by (source, target), not by number.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddx_tools.alignment.records import SETTLED_S, Entry, Group, Records
from ddx_tools.alignment.sides import locations
from ddx_tools.model import Finding, Severity, rank_list


@dataclass(frozen=True)
class Half:
    """A pending send or receive whose other end is not pending."""

    group: Group
    entry: Entry
    peer: int
    """Global rank of the other end."""


def unpaired(records: Records) -> list[Half]:
    """Pending point-to-point operations that their peer, looked at later, has not begun."""
    found = []
    for group in records.groups.values():
        pending = {
            rank: [entry for entry in entries if not entry.done and _is_settled(records, entry)]
            for rank, entries in group.p2p.items()
        }
        for rank, entries in pending.items():
            for entry in entries[:1]:
                peer = _peer(group, entry, rank)
                if peer is None or peer not in records.ranks:
                    continue
                if not any(other.peer == entry.peer and other.op != entry.op for other in pending.get(peer, ())):
                    found.append(Half(group, entry, peer))
    return found


def point_to_point(records: Records) -> list[Finding]:
    """Circles among unpaired operations; what is in no circle is unmatched."""
    halves = unpaired(records)
    waits_for = {half.entry.rank: half.peer for half in halves}
    circle = _circle(waits_for)
    findings = []
    if circle:
        inside = [half for half in halves if half.entry.rank in circle]
        findings.append(_finding("p2p.circular_wait", inside, f"{rank_list(circle).capitalize()} wait for each other"))
    for half in halves:
        if half.entry.rank not in circle:
            entry = half.entry
            text = f"{entry.op} {entry.peer} of rank {entry.rank} has no partner on rank {half.peer}"
            findings.append(_finding("p2p.unmatched", [half], text))
    return findings


def _finding(code: str, halves: list[Half], text: str) -> Finding:
    entries = [half.entry for half in halves]
    return Finding(
        code=code,
        severity=Severity.FAILURE,
        ranks=sorted(entry.rank for entry in entries),
        group=halves[0].group.label,
        summary=f"{text} ({halves[0].group.label}).",
        evidence=[entry.evidence() for entry in entries[:8]],
        locations=locations(entries),
        attributes={
            "operations": {str(entry.rank): f"{entry.op} {entry.peer}" for entry in entries},
            "operation": entries[0].op,
            "peers": {str(half.entry.rank): half.peer for half in halves},
            "basis": "flight_records",
        },
    )


def _is_settled(records: Records, entry: Entry) -> bool:
    taken = records.ranks[entry.rank].taken_ns
    return taken is None or entry.created_ns is None or (taken - entry.created_ns) / 1e9 >= SETTLED_S


def _peer(group: Group, entry: Entry, rank: int) -> int | None:
    """The global rank of the other end of `1->2`, whose numbers count within the group."""
    source, _, target = (entry.peer or "").partition("->")
    local = target if entry.op == "send" else source
    members = group.members
    if not local.isdecimal() or members is None or int(local) >= len(members):
        return None
    peer = members[int(local)]
    return None if peer == rank else peer


def _circle(waits_for: dict[int, int]) -> list[int]:
    """The ranks of a circle, sorted; empty if following the waits never comes back."""
    for start in sorted(waits_for):
        path = [start]
        while path[-1] in waits_for:
            target = waits_for[path[-1]]
            if target in path:
                return sorted(path[path.index(target) :])
            path.append(target)
    return []
