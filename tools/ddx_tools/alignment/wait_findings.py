"""Findings about waiting: who is missing, who waits, and how waiting spreads from group to group."""

from __future__ import annotations

from ddx_tools.alignment.records import Entry, Group, Records
from ddx_tools.alignment.sides import locations
from ddx_tools.alignment.wait_chain import Chain, chain_of
from ddx_tools.alignment.waits import Wait
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_MAX_EVIDENCE = 6


def waiting(records: Records, waits: list[Wait]) -> list[Finding]:
    """All findings about waits, groups in order of their keys."""
    chain = chain_of(waits)
    findings: list[Finding] = []
    by_collective: dict[tuple[str, int, str], list[Wait]] = {}
    for wait in waits:
        by_collective.setdefault((wait.group.key, wait.entry.seq, wait.entry.op), []).append(wait)
    for _, together in sorted(by_collective.items()):
        findings.append(_peers_wait(together))
        if finding := _missing_ranks(records, together, chain):
            findings.append(finding)
        if finding := _all_entered(together):
            findings.append(finding)
    if chain is not None and len(chain.groups) > 1:
        findings.append(_wait_chain(records, chain, waits))
    return findings


def _peers_wait(together: list[Wait]) -> Finding:
    group, seq, op = together[0].group, together[0].entry.seq, together[0].entry.op
    known = [wait.wait_s for wait in together if wait.wait_s is not None]
    wait_s = max(known, default=None)
    ranks = sorted(wait.rank for wait in together)
    for_time = "" if wait_s is None else f" for {wait_s:.0f} s"
    return Finding(
        code="collective.peers_wait",
        severity=Severity.WARNING,
        ranks=ranks,
        group=group.label,
        summary=f"{rank_list(ranks).capitalize()} {'are' if len(ranks) > 1 else 'is'} in {op} "
        f"(collective {seq} of {group.label}){for_time}.",
        evidence=_evidence([wait.entry for wait in together]),
        locations=locations([wait.entry for wait in together]),
        attributes={
            "operation": op,
            "seq": seq,
            "wait_s": None if wait_s is None else round(wait_s, 1),
            "basis": "flight_records",
        },
    )


def _missing_ranks(records: Records, together: list[Wait], chain: Chain | None) -> Finding | None:
    """The members that a collective waits for: absent, dated later, and not themselves waiting elsewhere."""
    group, entry = together[0].group, together[0].entry
    absent = sorted({rank for wait in together for rank in wait.missing})
    ranks = [rank for rank in absent if chain is not None and rank in chain.roots]
    if chain is None or not ranks:
        return None
    undated = any(wait.undated for wait in together)
    last_calls = _last_entries(group, ranks)
    # In a small group one waits for one; over all groups it shows who is the exception.
    balance = len(chain.victims) - len(chain.roots)
    return Finding(
        code="collective.missing_ranks",
        severity=Severity.FAILURE if balance >= 0 and not undated else Severity.WARNING,
        ranks=ranks,
        group=group.label,
        summary=f"{rank_list(ranks).capitalize()} never entered {entry.op} (collective {entry.seq} of "
        f"{group.label}), in which {rank_list([wait.rank for wait in together])} "
        f"{'wait' if len(together) > 1 else 'waits'}.",
        evidence=_evidence([together[0].entry]) + _last_of(records, group, ranks),
        attributes={
            "operation": entry.op,
            "seq": entry.seq,
            "missing": absent,
            "waiting": sorted(wait.rank for wait in together),
            "last_seq": {str(rank): _last_seq(group, rank) for rank in ranks},
            "last_call": {str(last.rank): place.short() for last in last_calls if (place := last.location())},
            "minority": balance > 0,
            "tie": balance == 0,
            "simultaneous": "unknown" if undated else "yes",
            "basis": "flight_records",
        },
    )


def _all_entered(together: list[Wait]) -> Finding | None:
    """Every member is in the same operation and none gets out."""
    group, entry = together[0].group, together[0].entry
    ranks = sorted(wait.rank for wait in together)
    if group.members is None or sorted(group.members) != ranks:
        return None
    known = [wait.wait_s for wait in together if wait.wait_s is not None]
    return Finding(
        code="collective.all_entered",
        severity=Severity.FAILURE,
        ranks=ranks,
        group=group.label,
        summary=f"All members of {group.label} entered {entry.op} (collective {entry.seq}), and nobody finishes it.",
        evidence=_evidence([wait.entry for wait in together]),
        locations=locations([wait.entry for wait in together]),
        attributes={
            "complete": True,
            "operation": entry.op,
            "seq": entry.seq,
            "wait_s": round(min(known), 1) if known else None,
            "basis": "flight_records",
        },
    )


def _wait_chain(records: Records, chain: Chain, waits: list[Wait]) -> Finding:
    entries = [wait.entry for wait in waits if wait.blockers]
    silent = [rank for rank in chain.roots if rank not in records.ranks]
    return Finding(
        code="collective.wait_chain",
        severity=Severity.WARNING if silent else Severity.FAILURE,
        ranks=list(chain.roots),
        summary=f"{rank_list(list(chain.victims)).capitalize()} wait in several groups, "
        f"and all of it leads back to {rank_list(list(chain.roots))}"
        f"{', of which no record says more' if silent else ''}.",
        evidence=_evidence(entries),
        attributes={
            "chain": list(chain.sentences),
            "roots": list(chain.roots),
            "victims": list(chain.victims),
            "cycles": [list(cycle) for cycle in chain.cycles],
            "without_record": silent,
            "groups": sorted({wait.group.label for wait in waits if wait.blockers}),
            "basis": "flight_records",
        },
    )


def _evidence(entries: list[Entry]) -> list[Evidence]:
    return [entry.evidence() for entry in entries[:_MAX_EVIDENCE]]


def _last_entries(group: Group, ranks: list[int]) -> list[Entry]:
    """The last collective of the group that each rank did enter: from there on it went another way."""
    return [group.collectives[rank][max(group.collectives[rank])] for rank in ranks if group.collectives.get(rank)]


def _last_seq(group: Group, rank: int) -> int:
    entries = group.collectives.get(rank, {})
    return max([*entries, group.last_enqueued.get(rank, 0)])


def _last_of(records: Records, group: Group, ranks: list[int]) -> list[Evidence]:
    """Where each missing rank's record ends."""
    entries = _last_entries(group, ranks)[:_MAX_EVIDENCE]
    silent = [rank for rank in ranks if not group.collectives.get(rank)][:_MAX_EVIDENCE]
    return [entry.evidence() for entry in entries] + [
        Evidence(source=records.ranks[rank].source, quote=f"rank {rank} recorded nothing in {group.label}")
        for rank in silent
    ]
