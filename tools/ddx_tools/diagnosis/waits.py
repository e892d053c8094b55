"""Derives suspects from the wait graph, and filters findings that contradict it.

If the graph is clear, its roots are the answer. A finding from a farther source (or from main threads only) that blames
ranks which merely wait is left out of the judgement, and is mentioned with the suspects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.collectives.records.usual_waits import STANDING_S
from ddx_tools.analysis.wait_graph.build import wait_graph
from ddx_tools.analysis.wait_graph.model import (
    EdgeKind,
    NodeCondition,
    NodeState,
    Source,
    Sure,
    WaitGraph,
    program_of,
    ranks_of,
)
from ddx_tools.analysis.wait_graph.roots import Root, Roots, chain_of, find_roots
from ddx_tools.diagnosis.suspects import blames, find_suspects, seated
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import (
    Certainty,
    Claim,
    Diagnosis,
    Evidence,
    Finding,
    Location,
    Seat,
    Suspect,
    SuspectEvent,
    Verdict,
    distinct,
    rank_list,
)
from ddx_tools.model.grouping import gathered

_CODE = "rank.waited_for"
_RECORDS = "flight_records"
_MOST_SEATS, _MOST_CLAIMS, _MOST_PLACES, _MOST_OTHERS, _MOST_QUOTED, _MOST_KINDS = 32, 4, 6, 3, 2, 4
_MOST_DOINGS = 3
_NOT_SEEN = frozenset({NodeState.UNKNOWN, NodeState.UNSEEN, NodeState.UNREAD})
"""States without evidence, which do not count against a rank if its peers' trouble has another explanation."""
_UNLESS_BUSY = "it is working and makes progress: sample it again after a minute"
_UNLESS_LOADED = "its data arrives after all: sample it again after a minute"
_UNLESS_HOST = "its host is fine and merely does not answer ddx"
_UNLESS_COLLECTED = "its record of this run was not collected"


@dataclass(frozen=True)
class Waits:
    """The result of the wait graph: its roots, the suspects, and the chain of waits."""

    graph: WaitGraph = field(default_factory=WaitGraph)
    roots: Roots = field(default_factory=Roots)
    suspects: tuple[Suspect, ...] = ()
    """Empty if the graph names no suspects."""
    chain: tuple[str, ...] = ()
    moving: bool = False
    """The job made steps during the capture."""
    agrees: bool = False
    """Whether findings name the same suspects."""
    brief_s: float | None = None
    """How long ranks have waited for the roots, if that is only a few seconds and the roots are at work; else None."""


def waits_of(store: Store, findings: Sequence[Finding], seats: Mapping[int, Seat]) -> Waits:
    """Build the wait graph of a store, and find its roots and suspects."""
    graph = wait_graph(store, seats, findings)
    roots = find_roots(graph)
    chain = tuple(chain_of(graph, roots)) if roots.ranks or roots.victims else ()
    moving = any(finding.code == "job.progressing" for finding in findings)
    if not roots.clear or moving:
        return Waits(graph, roots, (), chain, moving)
    briefly_s = _awaited_briefly(findings)
    if briefly_s.keys() >= set(roots.ranks):
        return Waits(graph, roots, (), chain, brief_s=max(briefly_s[rank] for rank in roots.ranks))
    before = find_suspects(findings, seats)
    if _is_seen_otherwise(roots, before):
        return Waits(graph, roots, (), chain)
    deeper = any(root.within for root in roots.roots) and all(one.certainty is Certainty.SEEN for one in before)
    same = {rank for suspect in before for rank in suspect.ranks} == set(roots.ranks)
    suspects = [_suspect(graph, roots, root, seats) for root in roots.roots]
    loading = _loading(findings)
    for suspect in suspects:
        if set(suspect.ranks) <= loading:
            suspect.certainty, suspect.unless = Certainty.LIKELY, _UNLESS_LOADED
    if same and not deeper:
        return Waits(graph, roots, tuple(_agreed(suspects, before)), chain, agrees=True)
    suspects[0].otherwise = [one.says for one in before if set(one.ranks) - set(roots.ranks)][:_MOST_OTHERS]
    return Waits(graph, roots, tuple(suspects), chain)


def _loading(findings: Sequence[Finding]) -> set[int]:
    """Ranks that wait for a data loader which may still deliver: every job does so now and then."""
    return {
        rank
        for finding in findings
        if finding.code == "rank.outside_collective"
        and finding.attributes.get("activity") == "data_wait"
        and finding.attributes.get("awaited_work")
        for rank in finding.ranks
    }


def _awaited_briefly(findings: Sequence[Finding]) -> dict[int, float]:
    """For ranks at work that their peers have waited for only a few seconds, as happens in every job: how long."""
    return {
        rank: wait_s
        for finding in findings
        if (wait_s := finding.attributes.get("awaited_briefly_s")) is not None
        for rank in finding.ranks
    }


def _agreed(suspects: Sequence[Suspect], before: Sequence[Suspect]) -> list[Suspect]:
    """The suspects of the graph, with details from findings about the same ranks."""
    told = {tuple(sorted(one.ranks)): one for one in before}
    if told.keys() != {tuple(sorted(one.ranks)) for one in suspects}:
        return list(before)
    merged = []
    for one in suspects:
        other = told[tuple(sorted(one.ranks))]
        ended = other.event is SuspectEvent.ENDED
        elsewhere = (other.event, one.event) == (SuspectEvent.ABSENT, SuspectEvent.MISMATCHED)
        more = {
            "says": other.says if ended else one.says,
            "event": one.event if elsewhere else other.event,
            "certainty": one.certainty if one.unless and not other.unless else other.certainty,
            "unless": other.unless or one.unless,
            "locations": distinct([*other.locations, *one.locations])[:_MOST_PLACES],
            "evidence": list(
                {(each.source, each.line, each.quote): each for each in [*other.evidence, *one.evidence]}.values()
            )[:_MOST_CLAIMS],
        }
        merged.append(other.model_copy(update=more))
    return merged


def _is_seen_otherwise(roots: Roots, before: Sequence[Suspect]) -> bool:
    """Whether all roots are ranks without evidence, while findings show which ranks are at fault."""
    return all(root.state in _NOT_SEEN for root in roots.roots) and any(
        suspect.ranks and suspect.certainty is Certainty.SEEN for suspect in before
    )


def agreeing(findings: Sequence[Finding], waits: Waits) -> list[Finding]:
    """Return the findings made consistent with the suspects of the wait graph.

    Findings that blame waiting ranks or most of the job are dropped, and one about the suspects is added if only stacks
    show them. Unchanged if the graph names no suspects or agrees with the findings.
    """
    if not waits.suspects or waits.agrees:
        return list(findings)
    roots, graph = waits.roots, waits.graph
    kept = [finding for finding in findings if not _is_contradicted(finding, waits)]
    if any(finding.code == _CODE and set(finding.ranks) == set(roots.ranks) for finding in kept):
        return kept
    first = waits.suspects[0]
    quoted = [Evidence(source=claim.source, line=claim.line, quote=claim.quote) for claim in first.evidence]
    said = raising.waited_for(
        "circle" if roots.circle else "outside",
        roots.ranks,
        roots.victims,
        Where("stacks"),
        FindingPlace(quoted, first.locations, first.hosts),
        place=False,
        chain=list(waits.chain),
        sole=len(roots.roots) == 1,
        tie=False,
        simultaneous="yes",
        moving=False,
    )
    states = {root.state for root in roots.roots}
    return [said.model_copy(update={"summary": first.says}), *kept] if _told_by_stacks(graph, states) else kept


def blaming_findings(findings: Sequence[Finding], waits: Waits) -> list[Finding]:
    """The findings that may make ranks suspects.

    Nothing yet blames ranks that are awaited briefly. An exit of an unknown rank says nothing where all ranks of its
    host wait.
    """
    spared = set(waits.roots.ranks) if waits.brief_s is not None else set()
    on_host = gathered((host, rank) for rank, host in waits.graph.hosts.items())
    waiting = {host for host, ranks in on_host.items() if set(ranks) <= set(waits.roots.victims)}

    def may_blame(finding: Finding) -> bool:
        if finding.ranks:
            return not set(finding.ranks) <= spared
        return finding.code != "rank.exited" or not finding.hosts or not waiting.issuperset(finding.hosts)

    return list(filter(may_blame, findings))


def with_waits(said: Diagnosis, waits: Waits) -> Diagnosis:
    """Add the victims and the chain from the graph to an undecided answer."""
    victims = list(waits.roots.victims)
    if said.verdict is not Verdict.UNDECIDED or not victims or waits.moving:
        return said
    more: dict[str, object] = {}
    if waits.suspects or not said.victims.ranks or (waits.roots.open and not said.suspects):
        more["victims"] = said.victims.model_copy(update={"ranks": victims})
    if waits.suspects and not said.chain:
        more["chain"] = list(waits.chain)
    return said.model_copy(update=more)


def _told_by_stacks(graph: WaitGraph, states: set[NodeState]) -> bool:
    """Whether the graph knows the roots only from stacks, so that no other source has a finding about them."""
    sources = {operation.source for operation in graph.operations.values()}
    return Source.STACKS in sources and Source.RECORDS not in sources and NodeState.ENDED not in states


def _is_contradicted(finding: Finding, waits: Waits) -> bool:
    """Whether a finding from a farther source blames ranks that the graph shows waiting, or most ranks of the job."""
    ranks, roots, graph = set(finding.ranks), set(waits.roots.ranks), waits.graph
    if not ranks or finding.attributes.get("basis") == _RECORDS or not blames(finding):
        return False
    most = len(graph.ranks) > 2 and 2 * len(ranks) > len(graph.ranks)
    return most or (not ranks & roots and ranks <= set(waits.roots.victims))


# --- suspects


def _suspect(graph: WaitGraph, roots: Roots, root: Root, seats: Mapping[int, Seat]) -> Suspect:
    known = [seats[rank] for rank in root.ranks if rank in seats]
    hosts = {root.host} if root.host else {seat.host for seat in known if seat.host}
    absent = any(each.source is Source.PROCESSES and each.state is NodeState.UNKNOWN for each in root.conditions)
    unless = _UNLESS_HOST if absent else _UNLESS_BUSY if _may_only_be_slow(graph, root) else ""
    unless = _UNLESS_COLLECTED if _is_of_another_run(graph, root) else unless
    suspect = Suspect(
        ranks=list(root.ranks),
        event=root.event,
        hosts=sorted(host for host in hosts if host),
        seats=known[:_MOST_SEATS],
        certainty=Certainty.LIKELY if unless else Certainty.SEEN,
        unless=unless,
        says="",
        locations=distinct(_places(graph, root))[:_MOST_PLACES],
    )
    suspect.says = _sentence(graph, roots, root, suspect)
    suspect.evidence = [
        Claim(finding=_CODE, claim=suspect.says, source=each.source, line=each.line, quote=each.quote)
        for each in _without_repeats(_evidence(graph, root))[:_MOST_CLAIMS]
    ]
    return suspect


def _is_of_another_run(graph: WaitGraph, root: Root) -> bool:
    """Whether the only records of the root's ranks are from another run, and nothing else shows what they do."""
    return root.state is NodeState.UNKNOWN and graph.of_other_runs.issuperset(root.ranks)


def _may_only_be_slow(graph: WaitGraph, root: Root) -> bool:
    """Whether the root may merely be slow: it makes progress, and no rank has waited longer than slow work takes."""
    if root.state is not NodeState.OUTSIDE or root.mismatch is not None:
        return False
    moving = [each.moves for each in _conditions(graph, root) if each.source is Source.STACKS]
    return bool(moving) and all(moving) and 0 < _longest_wait_s(graph, root.ranks) < STANDING_S


def _longest_wait_s(graph: WaitGraph, roots: Sequence[int]) -> float:
    """Seconds that ranks other than the roots have waited at least; 0 if unknown."""
    return max((edge.wait_s or 0.0 for edge in graph.edges if edge.waiter.rank not in roots), default=0.0)


def _without_repeats(evidence: Iterable[Evidence]) -> list[Evidence]:
    return list({(each.source, each.line, each.quote): each for each in evidence}.values())


def _conditions(graph: WaitGraph, root: Root) -> Iterable[NodeCondition]:
    """The known conditions of a root's ranks, those from stacks first."""
    for rank in root.ranks:
        if rank in graph.doing and root.state is not NodeState.ENDED and not root.within:
            yield graph.doing[rank]
    yield from root.conditions


def _places(graph: WaitGraph, root: Root) -> Iterable[Location | None]:
    for condition in _conditions(graph, root):
        yield from condition.locations
    for rank in root.ranks:
        if root.within and rank in graph.doing:
            yield from graph.doing[rank].locations
    if root.mismatch is not None:
        yield from root.mismatch.locations


def _evidence(graph: WaitGraph, root: Root) -> Iterable[Evidence]:
    if root.mismatch is not None:
        yield from root.mismatch.evidence[:_MOST_QUOTED]
    for condition in _conditions(graph, root):
        yield from condition.evidence
    yield from _of_waits(graph, root)


def _of_waits(graph: WaitGraph, root: Root) -> Iterable[Evidence]:
    """Evidence from ranks that wait directly for the root."""
    nodes = {program_of(rank) for rank in root.ranks}
    direct = {edge.waiter for edge in graph.edges if edge.awaited in nodes}
    for edge in graph.edges:
        if edge.awaited in direct and edge.evidence is not None:
            yield edge.evidence


def _sentence(graph: WaitGraph, roots: Roots, root: Root, suspect: Suspect) -> str:
    """The suspect's sentence: who it is, what it does, and which ranks wait for it in what."""
    who = seated(suspect, one_host=is_on_one_host(graph))
    return f"{who[0].upper()}{who[1:]} {_doing(graph, root)}{who_waits(graph, root.ranks)}"


def is_on_one_host(graph: WaitGraph) -> bool:
    """Whether all ranks are known to run on one host."""
    return len(set(graph.hosts.values())) == 1 and graph.ranks <= graph.hosts.keys()


def who_waits(graph: WaitGraph, ranks: Sequence[int]) -> str:
    """Return the end of a headline that names who waits: `; ranks 0-2 wait for it in all_reduce`.

    `ranks`: the blocking ranks. Empty if nobody waits directly for them.
    """
    nodes = {program_of(rank) for rank in ranks}
    known = graph.leaving(Sure.SEEN, Sure.INFERRED)
    direct = [
        node
        for node, awaited in graph.leaving(*Sure).items()
        if known.get(node, set()) & nodes or (awaited and not known.get(node) and awaited <= nodes)
    ]
    inside = graph.in_operation()
    waiting = ranks_of(rank for node in direct for rank in inside.get(node, ())) - set(ranks)
    locking = {edge.waiter.rank for edge in graph.edges if edge.kind is EdgeKind.FILE_LOCK and edge.awaited in nodes}
    if not waiting and locking:
        return f"; {rank_list(locking)} {'wait' if len(locking) > 1 else 'waits'} for a lock on a file that it holds"
    if not waiting:
        return ""
    words = list(dict.fromkeys(graph.operations[node].words for node in direct if node in graph.operations))
    kinds = words if len(words) == 1 else list(dict.fromkeys(_OPERATION_END.split(each)[0] for each in words))
    kinds = [each for each in kinds if each != _UNNAMED] or kinds
    where = f" in {' and '.join(kinds)}" if 0 < len(kinds) < _MOST_KINDS else f" in {len(words)} operations"
    where = where if words else ""
    it = "it" if len(ranks) == 1 else "them"
    return f"; {rank_list(waiting)} {'wait' if len(waiting) > 1 else 'waits'} for {it}{where}"


def doing_of(graph: WaitGraph, ranks: Sequence[int]) -> str:
    """What ranks do according to their stacks, in words; empty if unknown for some, or too diverse."""
    told = list(dict.fromkeys(graph.doing[rank].says if rank in graph.doing else "" for rank in ranks))
    if not all(told) or len(told) > _MOST_DOINGS:
        return ""
    alike = len({says.partition(" ")[0] for says in told}) == 1
    first, *others = (_numbered(says, many=len(ranks) > 1) for says in told)
    more = [says.partition(" ")[2] for says in others] if alike else others
    return " and ".join([first, *more])


def _numbered(says: str, *, many: bool) -> str:
    return _OF_MANY.sub(lambda found: _PLURALS[found[0]], says).replace("its own", "their own") if many else says


def _doing(graph: WaitGraph, root: Root) -> str:
    """What the root does or is, as a verb phrase in the right number."""
    many = len(root.ranks) > 1
    if root.state is NodeState.UNKNOWN and any(each.source is Source.PROCESSES for each in root.conditions):
        return "cannot be reached"
    if _is_of_another_run(graph, root):
        return "left only records of another run" if many else "left only a record of another run"
    if root.mismatch is not None and not root.mismatch.aspect.startswith("circle"):
        return f"{'differ' if many else 'differs'} from {'their' if many else 'its'} peers in {root.mismatch.aspect}"
    if root.state is not NodeState.ENDED:
        told = {condition.says for condition in root.conditions if condition.source is Source.STACKS}
        said = _numbered(told.pop(), many=many) if root.within and len(told) == 1 else doing_of(graph, root.ranks)
        places = [place for rank in root.ranks if rank in graph.doing for place in graph.doing[rank].locations]
        if root.within and places and f" at {places[0].short()}" not in said:
            verb, _, whom = said.partition(" for ")
            said = f"{verb} at {places[0].short()} for {whom}" if whom else said
        if said:
            return said
    if root.conditions and all(each.source is Source.INSPECTOR for each in root.conditions):
        # NCCL Inspector shows what was finished, not what is pending.
        return "have not finished what their peers have" if many else "has not finished what its peers have"
    return (_STATES_OF_MANY if many else _STATES)[root.state]


_UNNAMED = "a collective"
_OPERATION_END = re.compile(r" \(| at ")
_PLURALS = {"is": "are", "waits for its": "wait for their"}
_OF_MANY = re.compile(r"^(?:waits for its|is)\b")
_STATES = {
    NodeState.ENDED: "ended",
    NodeState.STOPPED: "is stopped",
    NodeState.OUTSIDE: "has no pending operation of its own",
    NodeState.DEVICE_BEHIND: "called the operation, but its GPU never started it",
    NodeState.STANDS_STILL: "has calls pending that its peers finished long ago",
    NodeState.ELSEWHERE: "took a different path from its peers",
    NodeState.UNSEEN: "is in a call that its flight record does not show",
    NodeState.UNKNOWN: "left no record",
    NodeState.UNREAD: "left no record that could be read",
}
_STATES_OF_MANY = _STATES | {
    NodeState.STOPPED: "are stopped",
    NodeState.OUTSIDE: "have no pending operation of their own",
    NodeState.DEVICE_BEHIND: "called the operation, but their GPUs never started it",
    NodeState.STANDS_STILL: "have calls pending that their peers finished long ago",
    NodeState.ELSEWHERE: "took a different path from their peers",
    NodeState.UNSEEN: "are in a call that their flight records do not show",
}
