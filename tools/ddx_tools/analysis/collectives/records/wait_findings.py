"""Findings about waiting: who waits, which ranks all waits lead back to, and operations that no rank finishes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, State
from ddx_tools.analysis.collectives.operation_classes import class_of
from ddx_tools.analysis.collectives.records.device_positions import Fronts
from ddx_tools.analysis.collectives.records.exchanges import splits_are_recorded
from ddx_tools.analysis.collectives.records.progress import Behind
from ddx_tools.analysis.collectives.records.quotes import kind_of, label_of, shown, where
from ddx_tools.analysis.collectives.records.recorded_graph import may_be_a_host
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.analysis.collectives.wait_solver import SolvedWaits
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered

_MAX_EVIDENCE = 8
_MAX_PLACES = 64
_FEWEST_RANKS = 3
_FEW = 4
"""Up to this many ranks' devices stop together, like those of neighbours in one exchange."""


def waiting(
    records: Records, holds: list[Recorded], graph: SolvedWaits[Recorded] | None, moving: bool
) -> list[Finding]:
    """Return the findings about waits in flight records: who waits, for whom, and who has no record.

    `holds` are the operations in which ranks wait; `graph` is their solved wait graph, None if no rank waits for
    another. `moving`: the job went on while the records were taken.
    """
    findings = [_peers_wait(records, together) for together in _alike(holds)]
    if graph is None:
        return findings + _all_entered(holds)
    findings += _waited_for(records, graph, moving)
    if finding := _missing_ranks(records, graph):
        findings.append(finding)
    return findings if graph.roots else findings + _all_entered(holds)


def _alike(holds: Iterable[Recorded]) -> list[list[Recorded]]:
    """Holds grouped by the same operation in groups of one kind. All transfers in one kind of group count as one."""
    alike = gathered(((kind_of(hold.group), "p2p" if hold.transfer else hold.op), hold) for hold in holds)
    return [alike[key] for key in sorted(alike)]


def _peers_wait(records: Records, together: list[Recorded]) -> Finding:
    label = label_of(hold.group for hold in together)
    p2p = together[0].transfer is not None
    numbers = sorted({hold.seq for hold in together if hold.seq is not None})
    known = [hold.wait_s for hold in together if hold.wait_s is not None]
    wait_s = max(known, default=None)
    ranks = sorted({rank for hold in together for rank in hold.waiting})
    for_time = "" if wait_s is None else f" for {wait_s:.0f} s"
    op = "/".join(sorted({hold.op.partition(" ")[0] for hold in together}))
    which = f"collective {numbers[0]} of {label}" if len(numbers) == 1 else f"{len(numbers)} collectives of {label}"
    return raising.finding(
        "collective.peers_wait",
        Severity.WARNING,
        ranks,
        f"{rank_list(ranks).capitalize()} {'are' if len(ranks) > 1 else 'is'} in {op} "
        f"({label if p2p else which}){for_time}.",
        where(label, numbers[0] if len(numbers) == 1 else None, op),
        shown(_entries(records, together)),
        kind="p2p" if p2p else "collective",
        wait_s=None if wait_s is None else round(wait_s, 1),
    )


def _waited_for(records: Records, graph: SolvedWaits[Recorded], moving: bool) -> Iterator[Finding]:
    """One finding per state of the roots."""
    undated = any(hold.undated for hold in graph.holds)
    by_state = graph.by_state()
    for state, ranks in by_state.items():
        direct = [hold for hold in graph.holds if {*hold.blockers, *hold.unknown} & set(ranks)]
        own = [hold for hold in graph.holds if set(ranks) & hold.waiting.keys()]
        first = direct[0] if direct else None
        pointed = shown(_entries(records, direct), [e for e in _entries(records, own) if e.rank in ranks])
        called = [entry.evidence() for entry in _entries(records, own[:_MAX_EVIDENCE]) if entry.rank in ranks]
        before = _behind(direct, ranks) if state == "device_behind" else called[:1]
        yield raising.waited_for(
            state if state != "no_record" or not records.of_other_runs.issuperset(ranks) else "other_run",
            ranks,
            graph.victims,
            where(
                label_of([first.group]) if first else None,
                None,
                (own[0] if state == "circle" and own else first).op if first else None,
            ),
            FindingPlace(before + (pointed.evidence or [Evidence(source="fr_dumps")]), pointed.locations),
            place=False,
            chain=list(graph.sentences),
            sole=len(by_state) == 1,
            tie=graph.tie,
            unmatched=state == "circle" and graph.told_by in ("pairing", "path"),
            circle_of_p2p=state == "circle" and _is_of_transfers(graph),
            p2p=any(hold.transfer is not None for hold in direct),
            simultaneous="unknown" if undated else "yes",
            moving=moving,
        )


def awaited_if_hung(
    records: Records, graph: SolvedWaits[Recorded] | None, behind: Sequence[Behind] = ()
) -> list[Finding]:
    """Find ranks that all others wait for, in records that do not show whether the job hung.

    They have nothing pending, or have not finished what all their peers have, as when a device stopped.
    """
    roots = {} if graph is None else graph.roots
    ranks = [rank for rank, state in sorted(roots.items()) if state == "outside"]
    state: State = "outside"
    if not ranks and set(roots.values()) == {"stands_still"} and graph is not None and not graph.tie:
        at_once = any(records.ranks[rank].notes_ends_at_once for rank in roots)
        ranks, state = sorted(roots) if not at_once and _stopped_at_once(roots.keys(), behind) else [], "stands_still"
    # A few ranks that enter a call before all others are normal.
    half = len(records.ranks) / 2
    if graph is None or not ranks or len(ranks) >= half or len(graph.victims) < half:
        return []
    pointed = FindingPlace(shown(_entries(records, graph.holds)).evidence)
    chain = list(graph.sentences)
    return [raising.if_hung(state, ranks, where(None), pointed, waiting=len(graph.victims), chain=chain)]


def alone_ahead(records: Records, fronts: Fronts, holds: Sequence[Recorded]) -> list[Finding]:
    """Find the only rank that is in a call while all others with a record have nothing pending.

    The others did not make the call: they left early, or the rank made one more step or was merely the first. `holds`:
    all operations that some rank has been in for more than a moment.
    """
    (*pending,) = (rank for rank, status in fronts.status.items() if status != "idle")
    waiting = [rank for hold in holds for rank in hold.waiting]
    if pending != waiting or len(pending) != 1 or len(records.ranks) < _FEWEST_RANKS:
        return []
    front = fronts.of[pending[0]][0]
    others = [rank for rank in front.group.ranks() if rank in records.ranks and rank != pending[0]]
    entry = front.entry
    if entry is None or not others or any(front.group.entered(rank, entry.seq) is not False for rank in others):
        return []
    at = where(front.group, entry.seq, entry.op)
    return [raising.alone(at, pending, shown([entry]))]


def _stopped_at_once(ranks: Set[int], behind: Sequence[Behind]) -> bool:
    """Whether only these ranks are behind their peers, and are in one operation or on one host.

    Had the job been moving while records were taken one after another, other ranks would be behind as well, or these
    would be in different places.
    """
    if {each.rank for each in behind} != ranks:
        return False
    first = {each.rank: (each.group.id, each.entry.seq) for each in reversed(behind) if each.entry is not None}
    return may_be_a_host(ranks) or (len(ranks) <= _FEW and len(set(first.values())) == 1)


def _missing_ranks(records: Records, graph: SolvedWaits[Recorded]) -> Finding | None:
    """A finding about the collective that most ranks wait in and that a root never entered."""
    roots = {rank for rank, state in graph.roots.items() if state != "no_record"}
    direct = [hold for hold in graph.holds if hold.transfer is None and roots & set(hold.lacking)]
    if not direct:
        return None
    hold = max(direct, key=lambda each: (len(each.waiting), -(each.seq or 0)))
    group = hold.group
    ranks = [rank for rank in hold.lacking if rank in roots]
    last_calls = _last_entries(records, group, ranks)
    # In a small group one rank waits for one; counted over all groups, the exception shows.
    balance = len(graph.victims) - len(graph.roots)
    certain = balance >= 0 and not hold.undated
    # If others may be at fault as well, these are only the ranks that most ranks wait for.
    one_of_several = graph.tie and roots > set(ranks)
    return raising.missing(
        where(group, hold.seq, hold.op),
        ranks,
        hold.waiting,
        FindingPlace(shown(_entries(records, [hold])[:1]).evidence + _last_of(records, group, ranks, last_calls)),
        severity=Severity.INFO if one_of_several else Severity.FAILURE if certain else Severity.WARNING,
        simultaneous="unknown" if hold.undated else "yes",
        last_seq={rank: group.last_entered(rank) or 0 for rank in ranks},
        balance=balance,
        unclear=graph.tie,
        last_call={str(last.rank): place.short() for last in last_calls if (place := last.location())},
    )


def _all_entered(holds: Sequence[Recorded]) -> list[Finding]:
    """Findings about operations that every member is in and none finishes, with groups of one kind combined."""
    complete = [
        hold
        for hold in holds
        if hold.transfer is None and hold.group.members is not None and {*hold.group.members} == hold.waiting.keys()
    ]
    return [_entered_together(together) for together in _alike(complete)]


def _entered_together(together: list[Recorded]) -> Finding:
    entries = [entry for hold in together for entry in hold.entries()]
    label = label_of(hold.group for hold in together)
    known = [wait for hold in together for wait in hold.waiting.values() if wait is not None]
    started = {entry.state == "started" for entry in entries}
    return raising.all_entered(
        where(label, together[0].seq, together[0].op),
        {rank for hold in together for rank in hold.waiting},
        shown(entries),
        who=f"All members of {label}",
        severity=Severity.FAILURE,
        complete=True,
        started="all" if started == {True} else "none" if started == {False} else "some",
        wait_s=round(min(known), 1) if known else None,
        splits=splits_are_recorded(entries) if class_of(together[0].op).exchange else None,
        timeout_s=entries[0].timeout_ms / 1000 if entries[0].timeout_ms else None,
    )


def _entries(records: Records, holds: Sequence[Recorded]) -> list[Entry]:
    """The entries of the ranks in the given operations; those of transfers are looked up."""
    found = [entry for hold in holds for entry in hold.entries()]
    transfers = [hold.transfer for hold in holds[:_MAX_PLACES] if hold.transfer is not None]
    return found + records.entries_of([(t.rank, t.group_id, t.record_id) for t in transfers])


def _behind(holds: Sequence[Recorded], ranks: Iterable[int]) -> list[Evidence]:
    """Evidence for the call that the ranks made but their devices never started: the odd entry among their peers'."""
    called = [hold.group.at.get(hold.seq, {}) for hold in holds if hold.seq is not None]
    own = [entries[rank] for entries in called[:_MAX_EVIDENCE] for rank in ranks if rank in entries]
    places = ((entry.evidence(), entry.state) for entry in own[:_MAX_EVIDENCE])
    return [place.model_copy(update={"quote": f"{place.quote}: {state}"}) for place, state in places]


def _last_entries(records: Records, group: Group, ranks: list[int]) -> list[Entry]:
    """The last collective of the group that each rank entered: after it, the rank took a different path."""
    last = {rank: group.positions[rank].last_recorded for rank in ranks if rank in group.positions}
    wanted = [f"(rank = {rank} AND seq = {seq})" for rank, seq in last.items() if seq is not None][:_MAX_PLACES]
    if not wanted:
        return []
    entries = records.entries(group, f"NOT is_p2p AND op <> 'coalesced' AND ({' OR '.join(wanted)})")
    return list({entry.rank: entry for entry in entries}.values())


def _last_of(records: Records, group: Group, ranks: list[int], last: list[Entry]) -> list[Evidence]:
    """Evidence of where each missing rank's record ends."""
    seen = {entry.rank for entry in last}
    silent = [rank for rank in ranks if rank not in seen and rank in records.ranks][:_MAX_EVIDENCE]
    return [entry.evidence() for entry in last[:_MAX_EVIDENCE]] + [
        Evidence(source=records.ranks[rank].source) for rank in silent
    ]


def point_to_point(records: Records, graph: SolvedWaits[Recorded] | None) -> list[Finding]:
    """Find ranks that wait for each other in sends and receives only, or sends and receives without a counterpart.

    A wait for a rank that is itself blocked is a consequence, and appears in the chain of waits.
    """
    if graph is None:
        return []
    transfers = [hold for hold in graph.holds if hold.transfer is not None]
    circle = set(graph.circle)
    if _is_of_transfers(graph) and circle == graph.roots.keys():
        inside = [hold for hold in transfers if circle & hold.waiting.keys() and circle & set(hold.blockers)]
        return [
            _transfers(records, "p2p.circular_wait", inside, f"{rank_list(circle).capitalize()} wait for each other")
        ]
    lacking = [hold for hold in transfers if hold.lacking and {*hold.lacking, *hold.waiting} & graph.roots.keys()]
    return [
        _transfers(
            records,
            "p2p.unmatched",
            [hold],
            f"{hold.op} on {rank_list(list(hold.waiting))} has no matching call on {rank_list(list(hold.lacking))}",
        )
        for hold in lacking[:_MAX_EVIDENCE]
    ]


def _is_of_transfers(graph: SolvedWaits[Recorded]) -> bool:
    """Whether the circle consists of sends and receives only."""
    return bool(graph.circle) and all(
        hold.transfer is not None for hold in graph.holds if set(hold.waiting) & set(graph.circle)
    )


def _transfers(records: Records, code: str, holds: Sequence[Recorded], text: str) -> Finding:
    transfers = [hold.transfer for hold in holds if hold.transfer is not None]
    entries = records.entries_of([(each.rank, each.group_id, each.record_id) for each in transfers])
    return raising.finding(
        code,
        Severity.FAILURE,
        {each.rank for each in transfers},
        f"{text} ({holds[0].group.label}).",
        where(holds[0].group, None, entries[0].op),
        shown(entries),
        operations={str(entry.rank): f"{entry.op} {entry.peer}" for entry in entries},
        peers={str(each.rank): each.peer for each in transfers},
    )
