"""Findings about waiting: who waits, whom all of it leads back to, and what nobody gets out of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddx_tools.alignment.group_names import kind_of, label_of
from ddx_tools.alignment.records import Entry, Group, Records
from ddx_tools.alignment.sides import locations
from ddx_tools.alignment.splits import splits_are_recorded
from ddx_tools.alignment.wait_graph import Graph, State
from ddx_tools.alignment.waits import Hold
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_MAX_EVIDENCE = 6
_MAX_PLACES = 64


def waiting(records: Records, holds: list[Hold], graph: Graph | None, moving: bool) -> list[Finding]:
    """All findings about waits, those of all groups of one kind together."""
    findings = [_peers_wait(records, together) for together in _alike(hold for hold in holds)]
    if graph is None:
        return findings + _all_entered(holds)
    findings += _waited_for(records, graph, moving)
    if finding := _missing_ranks(records, graph):
        findings.append(finding)
    if len({hold.group.id for hold in graph.holds}) > 1:
        findings.append(_wait_chain(records, graph))
    return findings if graph.roots else findings + _all_entered(holds)


def _alike(holds: Iterable[Hold]) -> list[list[Hold]]:
    """Holds in the same operation of groups of one kind. All transfers of a kind of group are one operation here."""
    alike: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        alike.setdefault((kind_of(hold.group), "p2p" if hold.transfer else hold.op), []).append(hold)
    return [alike[key] for key in sorted(alike)]


def _peers_wait(records: Records, together: list[Hold]) -> Finding:
    label = label_of(hold.group for hold in together)
    p2p = together[0].transfer is not None
    numbers = sorted({hold.seq for hold in together if hold.seq is not None})
    known = [hold.wait_s for hold in together if hold.wait_s is not None]
    wait_s = max(known, default=None)
    ranks = sorted({rank for hold in together for rank in hold.waiting})
    for_time = "" if wait_s is None else f" for {wait_s:.0f} s"
    op = "/".join(sorted({hold.op.partition(" ")[0] for hold in together}))
    which = f"collective {numbers[0]} of {label}" if len(numbers) == 1 else f"{len(numbers)} collectives of {label}"
    return Finding(
        code="collective.peers_wait",
        severity=Severity.WARNING,
        ranks=ranks,
        group=label,
        summary=f"{rank_list(ranks).capitalize()} {'are' if len(ranks) > 1 else 'is'} in {op} "
        f"({label if p2p else which}){for_time}.",
        evidence=_evidence(records, together),
        locations=locations(_entries(records, together[:_MAX_PLACES])),
        attributes={
            "operation": op,
            "kind": "p2p" if p2p else "collective",
            "seq": numbers[0] if len(numbers) == 1 else None,
            "wait_s": None if wait_s is None else round(wait_s, 1),
            "basis": "flight_records",
        },
    )


_WORDS: dict[State, str] = {
    "outside": "and nothing of {their} own is pending",
    "device_behind": "which called the operation, but {their} device never came to it",
    "elsewhere": "which went another way than {their} peers",
    "circle": "which {wait} for others that wait for {them}",
    "no_record": "of which there is no record",
    "stands_still": "whose record has what {their} peers finished still unfinished",
}
_MANY = {"their": "their", "wait": "wait", "them": "them"}
_ONE = {"their": "its", "wait": "waits", "them": "it"}


def _waited_for(records: Records, graph: Graph, moving: bool) -> list[Finding]:
    """One finding for the roots of each state."""
    undated = any(hold.undated for hold in graph.holds)
    by_state: dict[State, list[int]] = {}
    for rank, state in sorted(graph.roots.items()):
        by_state.setdefault(state, []).append(rank)
    findings = []
    for state, ranks in sorted(by_state.items()):
        direct = [hold for hold in graph.holds if {*hold.blockers, *hold.unknown} & set(ranks)]
        own = [hold for hold in graph.holds if set(ranks) & hold.waiting.keys()]
        words = _WORDS[state].format(**(_ONE if len(ranks) == 1 else _MANY))
        findings.append(
            Finding(
                code="rank.waited_for",
                severity=Severity.FAILURE,
                ranks=ranks,
                group=label_of([direct[0].group]) if direct else None,
                summary=f"All waiting leads back to {rank_list(ranks)}, {words}"
                + (": the waiting of " + rank_list(list(graph.victims)) if graph.victims else "")
                + ".",
                evidence=(_behind(direct, ranks) if state == "device_behind" else _own_calls(records, own, ranks)[:1])
                + (_evidence(records, direct) or [_silent(ranks)]),
                locations=locations([e for e in _entries(records, own[:_MAX_PLACES]) if e.rank in ranks]),
                attributes={
                    "state": state,
                    "chain": list(graph.sentences),
                    "operation": (own if state == "circle" and own else direct)[0].op if direct else None,
                    "waiting": len(graph.victims),
                    "sole": len(by_state) == 1,
                    "tie": graph.tie,
                    "unmatched": state == "circle" and graph.told_by == "pairing",
                    "circle_of_p2p": state == "circle" and graph.circle_of_transfers,
                    "p2p": any(hold.transfer is not None for hold in direct),
                    "simultaneous": "unknown" if undated else "yes",
                    "moving": moving,
                    "basis": "flight_records",
                },
            )
        )
    return findings


def awaited_if_hung(records: Records, graph: Graph | None) -> list[Finding]:
    """Ranks with nothing pending that all others wait for, in records that do not say whether the job hung."""
    ranks = [rank for rank, state in sorted((graph.roots if graph else {}).items()) if state == "outside"]
    if graph is None or not ranks or 2 * len(ranks) >= len(records.ranks):
        return []
    return [
        Finding(
            code="rank.awaited_if_hung",
            severity=Severity.NOTICE,
            ranks=ranks,
            summary=f"If the job hung when these records were taken, all waiting leads back to {rank_list(ranks)}, "
            f"{_WORDS['outside'].format(**(_ONE if len(ranks) == 1 else _MANY))}.",
            evidence=_evidence(records, list(graph.holds)),
            attributes={"waiting": len(graph.victims), "chain": list(graph.sentences), "basis": "flight_records"},
        )
    ]


def _missing_ranks(records: Records, graph: Graph) -> Finding | None:
    """The collective that the most ranks wait in and that a root never entered."""
    roots = {rank for rank, state in graph.roots.items() if state != "no_record"}
    direct = [hold for hold in graph.holds if hold.transfer is None and roots & set(hold.lacking)]
    if not direct:
        return None
    hold = max(direct, key=lambda each: (len(each.waiting), -(each.seq or 0)))
    group = hold.group
    ranks = [rank for rank in hold.lacking if rank in roots]
    last_calls = _last_entries(records, group, ranks)
    # In a small group one waits for one; over all groups it shows who is the exception.
    balance = len(graph.victims) - len(graph.roots)
    return Finding(
        code="collective.missing_ranks",
        severity=Severity.FAILURE if balance >= 0 and not hold.undated else Severity.WARNING,
        ranks=ranks,
        group=group.label,
        summary=f"{rank_list(ranks).capitalize()} never entered {hold.op} (collective {hold.seq} of "
        f"{group.label}), in which {rank_list(sorted(hold.waiting))} "
        f"{'wait' if len(hold.waiting) > 1 else 'waits'}.",
        evidence=_evidence(records, [hold])[:1] + _last_of(records, group, ranks, last_calls),
        attributes={
            "operation": hold.op,
            "seq": hold.seq,
            "missing": sorted(hold.lacking),
            "waiting": sorted(hold.waiting),
            "last_seq": {str(rank): _last_seq(group, rank) for rank in ranks},
            "last_call": {str(last.rank): place.short() for last in last_calls if (place := last.location())},
            "minority": balance > 0,
            "tie": balance == 0 or graph.tie,
            "simultaneous": "unknown" if hold.undated else "yes",
            "basis": "flight_records",
        },
    )


def _all_entered(holds: Sequence[Hold]) -> list[Finding]:
    """Every member is in the same operation and none gets out; groups of one kind together."""
    complete = [
        hold
        for hold in holds
        if hold.transfer is None and hold.group.members is not None and {*hold.group.members} == hold.waiting.keys()
    ]
    return [_entered_together(together) for together in _alike(complete)]


def _entered_together(together: list[Hold]) -> Finding:
    entries = [entry for hold in together for entry in hold.entries()]
    label = label_of(hold.group for hold in together)
    known = [wait for hold in together for wait in hold.waiting.values() if wait is not None]
    started = {entry.state == "started" for entry in entries}
    return Finding(
        code="collective.all_entered",
        severity=Severity.FAILURE,
        ranks=sorted({rank for hold in together for rank in hold.waiting}),
        group=label,
        summary=f"All members of {label} entered {together[0].op} (collective {together[0].seq}), "
        "and nobody finishes it.",
        evidence=[entry.evidence() for entry in entries[:_MAX_EVIDENCE]],
        locations=locations(entries[:_MAX_PLACES]),
        attributes={
            "complete": True,
            "operation": together[0].op,
            "seq": together[0].seq,
            "started": "all" if started == {True} else "none" if started == {False} else "some",
            "wait_s": round(min(known), 1) if known else None,
            "splits": splits_are_recorded(entries) if together[0].op.startswith(("all_to_all", "alltoall")) else None,
            "timeout_s": entries[0].timeout_ms / 1000 if entries[0].timeout_ms else None,
            "basis": "flight_records",
        },
    )


def _wait_chain(records: Records, graph: Graph) -> Finding:
    roots = sorted(graph.roots)
    silent = [rank for rank in roots if rank not in records.ranks]
    back = f", and all of it leads back to {rank_list(roots)}" if roots else ""
    return Finding(
        code="collective.wait_chain",
        severity=Severity.WARNING if silent or not roots else Severity.FAILURE,
        ranks=roots,
        summary=f"{rank_list(list(graph.victims)).capitalize()} wait in several groups"
        f"{back}{', of which no record says more' if silent else ''}.",
        evidence=_evidence(records, graph.holds) or [Evidence(source="fr_entries", quote=graph.sentences[0])],
        attributes={
            "chain": list(graph.sentences),
            "roots": roots,
            "victims": list(graph.victims),
            "without_record": silent,
            "groups": sorted({hold.group.label for hold in graph.holds})[:_MAX_PLACES],
            "basis": "flight_records",
        },
    )


def _entries(records: Records, holds: Sequence[Hold]) -> list[Entry]:
    """The entries of the ranks in some operations; those of transfers are looked up."""
    found = [entry for hold in holds for entry in hold.entries()]
    transfers = [hold.transfer for hold in holds[:_MAX_PLACES] if hold.transfer is not None]
    return found + records.entries_of([(t.rank, t.group_id, t.record_id) for t in transfers])


def _evidence(records: Records, holds: Sequence[Hold]) -> list[Evidence]:
    return [entry.evidence() for entry in _entries(records, holds[:_MAX_EVIDENCE])[:_MAX_EVIDENCE]]


def _behind(holds: Sequence[Hold], ranks: Iterable[int]) -> list[Evidence]:
    """What the ranks called themselves and their devices did not come to: among the peers' the odd one."""
    called = [hold.group.at.get(hold.seq, {}) for hold in holds if hold.seq is not None]
    own = [entries[rank] for entries in called[:_MAX_EVIDENCE] for rank in ranks if rank in entries]
    places = [entry.evidence() for entry in own[:_MAX_EVIDENCE]]
    return [
        place.model_copy(update={"quote": f"{place.quote}: {entry.state}"})
        for place, entry in zip(places, own, strict=False)
    ]


def _own_calls(records: Records, own: Sequence[Hold], ranks: Sequence[int]) -> list[Evidence]:
    """What the ranks that are waited for are in themselves."""
    return [entry.evidence() for entry in _entries(records, own[:_MAX_EVIDENCE]) if entry.rank in ranks]


def _silent(ranks: list[int]) -> Evidence:
    return Evidence(source="fr_dumps", quote=f"no record of {rank_list(ranks)}")


def _last_entries(records: Records, group: Group, ranks: list[int]) -> list[Entry]:
    """The last collective of the group that each rank did enter: from there on it went another way."""
    last = {rank: group.positions[rank].last_recorded for rank in ranks if rank in group.positions}
    wanted = [f"(rank = {rank} AND seq = {seq})" for rank, seq in last.items() if seq is not None][:_MAX_PLACES]
    if not wanted:
        return []
    entries = records.entries(group, f"NOT is_p2p AND op <> 'coalesced' AND ({' OR '.join(wanted)})")
    return list({entry.rank: entry for entry in entries}.values())


def _last_seq(group: Group, rank: int) -> int:
    position = group.positions.get(rank)
    return (position.entered if position else None) or 0


def _last_of(records: Records, group: Group, ranks: list[int], last: list[Entry]) -> list[Evidence]:
    """Where each missing rank's record ends."""
    seen = {entry.rank for entry in last}
    silent = [rank for rank in ranks if rank not in seen and rank in records.ranks][:_MAX_EVIDENCE]
    return [entry.evidence() for entry in last[:_MAX_EVIDENCE]] + [
        Evidence(source=records.ranks[rank].source, quote=f"rank {rank} recorded nothing in {group.label}")
        for rank in silent
    ]
