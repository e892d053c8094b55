"""All findings from flight records, over the merged store of all ranks and hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import combinations

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.odd_ranks import part
from ddx_tools.analysis.collectives.records import simultaneity
from ddx_tools.analysis.collectives.records.at_rest import before_the_logs, doubt_about
from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.device_positions import Fronts, long_silent
from ddx_tools.analysis.collectives.records.exchanges import exchange_mismatches
from ddx_tools.analysis.collectives.records.lateness import arrives_late
from ddx_tools.analysis.collectives.records.progress import stands_still
from ddx_tools.analysis.collectives.records.quotes import kind_of, shown, where
from ddx_tools.analysis.collectives.records.recorded_graph import recorded_graph
from ddx_tools.analysis.collectives.records.records import Entry, Records
from ddx_tools.analysis.collectives.records.solved import Solved, solve, solved
from ddx_tools.analysis.collectives.records.wait_findings import alone_ahead, awaited_if_hung, point_to_point, waiting
from ddx_tools.analysis.collectives.records.waits import Recorded, find_holds
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity, rank_list


def analyse(store: Store) -> list[Finding]:
    """All findings from the flight records of a store, most telling first."""
    waits = store.derived(solved)
    if waits.records.ranks:
        return _findings(waits)
    others = simultaneity.other_attempts(waits.records)
    return [others] if others else []


def analyse_records(records: Records) -> list[Finding]:
    """All findings from records that are already loaded."""
    return _findings(solve(records))


def _findings(waits: Solved) -> list[Finding]:
    records, fronts, behind, frozen, moving = waits.records, waits.fronts, waits.behind, waits.frozen, waits.moving
    undated, holds, graph = waits.undated, waits.certain_holds, waits.certain_graph
    faults: list[Finding] = []
    for matched, shifted in waits.matched.values():
        faults += [_with_origin(finding, shifted) for finding in matched] + shifted
    if moving and not holds:
        faults += awaited_if_hung(records, waits.graph, behind)
    elif graph is None and records.only_active:
        # Dumps of active work come from hung jobs, and do not show how long operations normally take.
        short = find_holds(records, fronts, waits.deviating, patience_s=0.0)
        faults += awaited_if_hung(records, recorded_graph(records, fronts, short, set()), behind)
    faults += alone_ahead(records, fronts, waits.holds)
    faults += waiting(records, holds, graph, moving)
    faults += point_to_point(records, graph)
    faults += [*root_mismatches(records, holds), *exchange_mismatches(records, holds)]
    faults += group_mismatches(records, holds)
    if not moving and (finding := nobody_started(records, fronts)):
        faults.append(finding)
    if still := simultaneity.completion_frozen(behind, frozen):
        faults.append(still)
    if (graph is None or not graph.roots) and not stands_still(holds):
        faults += arrives_late(records)
    unread = simultaneity.missing_records(records)
    apart = simultaneity.different_moments(records, holds, behind, frozen)
    about = [finding for finding in (unread, apart) if finding is not None]
    pending = any(status != "idle" for status in fronts.status.values())
    known = (records.starts_seen or not undated or not pending) and not records.only_active
    # Ranks that wait for each other in a circle never make progress by themselves, however short the wait seems.
    known &= waits.graph is None or not waits.graph.circle
    dated = all(record.taken_ns is not None for record in records.ranks.values())
    if not faults and (old := before_the_logs(records)):
        about.append(old)
    elif (
        not (faults or unread or (apart and not dated))
        and known
        and (moving or not stands_in_something(records, fronts))
        and simultaneity.overlap(records)
    ):
        about.append(doubt_about(records, fronts) or simultaneity.consistent(records))
    about += filter(None, (simultaneity.other_attempts(records), simultaneity.other_versions(records)))
    return faults + about


def _with_origin(finding: Finding, shifted: list[Finding]) -> Finding:
    """A mismatch with the origin of the shift: a different operation often only reveals an earlier shift of calls."""
    earlier = [each for each in shifted if each.attributes["seq"] <= finding.attributes["seq"]]
    if not earlier or finding.code != "collective.operation_mismatch":
        return finding
    first = min(earlier, key=lambda each: int(each.attributes["seq"]))
    origin = {key: first.attributes[key] for key in ("seq", "kind", "call", "shift")}
    origin["ranks"] = first.ranks
    told = dict(finding.attributes)
    if origin["kind"] == "extra_call":
        # Its calls are shifted by one, and nothing was left out at the point where the shift shows.
        told = {key: value for key, value in told.items() if key not in ("left_out", "left_out_calls")}
    return finding.model_copy(update={"attributes": {**told, "first_site_divergence": origin}})


# --- one call of the program that ranks make in different groups: each side waits for peers that wait for it in
# another group

_DEFAULT = "default_pg"


def group_mismatches(records: Records, holds: Sequence[Recorded]) -> list[Finding]:
    """One finding for each pair of operations that come from one call path and block each other."""
    return [
        finding
        for one, other in combinations([hold for hold in holds if hold.transfer is None and hold.fronts], 2)
        if one.op == other.op and (finding := _group_mismatch(records, one, other)) is not None
    ]


def _group_mismatch(records: Records, one: Recorded, other: Recorded) -> Finding | None:
    mutual = set(one.blockers) & other.waiting.keys() and set(other.blockers) & one.waiting.keys()
    if one.group.id == other.group.id or not mutual:
        return None
    entries = {entry.rank: entry for entry in (*one.entries(), *other.entries())}
    # Frames are not requested from every rank.
    sites = [{entry.path: entry for entry in hold.entries() if entry.path is not None} for hold in (one, other)]
    if not all(sites) or sites[0].keys() != sites[1].keys() or len(sites[0]) != 1:
        return None
    used = _groups_used(records, next(iter(sites[0].values())))
    if any(len(groups) > 1 for groups, _ in used.values()):
        return None  # The call serves several groups in turn: these ranks are in different iterations of it.
    kinds = {rank: kind_of(records.groups[group]) for rank, ((group,), _) in used.items()}
    if kind_of(one.group) == kind_of(other.group):
        kinds = {rank: records.groups[group].label for rank, ((group,), _) in used.items()}
    sides = part({rank: kind for rank, kind in kinds.items() if rank in records.ranks})
    odd = [rank for rank in sides.deviating if rank in entries]
    first, second = sorted((one, other), key=lambda hold: -len(set(odd) & hold.waiting.keys()))
    ordered = [entries[rank] for hold in (first, second) for rank in sorted(hold.waiting) if rank in entries]
    tie = sides.tie or not odd
    # In its first iteration a loop over groups has also used one group per rank, and a rank that skipped an iteration
    # is in another group. Such a loop does not use the default group, which a call without a group argument gets.
    kinds_of_both = {kind_of(one.group), kind_of(other.group)}
    may_be_loop = _DEFAULT not in kinds_of_both and all(calls == 1 for _, calls in used.values())
    place = ordered[0].location()
    return raising.finding(
        "collective.group_mismatch",
        Severity.FAILURE,
        entries if tie else odd,
        f"{one.op} at {place.short() if place else 'one call path'} is called in different groups: "
        f"{rank_list(sorted(first.waiting))} in {first.group.label}, {rank_list(sorted(second.waiting))} in "
        f"{second.group.label}. Each side is a member of both groups and waits for the other.",
        where(first.group, None, one.op),
        shown(ordered, ordered if tie else [entries[rank] for rank in odd]),
        groups={first.group.label: sorted(first.waiting), second.group.label: sorted(second.waiting)},
        minority=not tie,
        tie=tie,
        may_be_loop=may_be_loop or None,
    )


def _groups_used(records: Records, entry: Entry) -> dict[int, tuple[list[int], int]]:
    """For each rank: the groups in which it recorded an operation from one call path, and how many calls."""
    rows = records.query(
        "SELECT rank, list(DISTINCT group_id) AS groups, count(*) AS calls FROM recorded "
        "WHERE path = ? AND op = ? AND NOT is_p2p GROUP BY rank",
        [entry.path, entry.op],
    )
    return {row["rank"]: (row["groups"], row["calls"]) for row in rows}


# --- gathers and scatters in which several ranks, or none, act as root
# Only the root of a gather lists what it receives, only the root of a scatter what it sends. For the others NCCL
# records an undefined tensor without elements, Gloo nothing. No record shows the root of a broadcast or a reduce.

_ROOTED = ("gather", "scatter")


def root_mismatches(records: Records, holds: Iterable[Recorded]) -> list[Finding]:
    """One finding for each hanging gather or scatter in which several ranks, or none, act as root."""
    found = (_root_mismatch(records, hold, hold.op) for hold in holds if hold.op in _ROOTED)
    return [finding for finding in found if finding is not None]


def _root_mismatch(records: Records, hold: Recorded, op: str) -> Finding | None:
    takers = (entry for entry in hold.entries() if _lists(op, entry.input_sizes, entry.output_sizes))
    roots = sorted(takers, key=lambda entry: entry.rank)
    complete = hold.is_complete and len(hold.entries()) == len(hold.group.ranks())
    if len(roots) == 1 or not (roots or complete):
        return None
    usual = _usual_roots(records, hold, op)
    odd = [entry.rank for entry in roots if entry.rank not in usual] if len(usual) == 1 else []
    tie = len(odd) != 1
    ranks = odd if not tie else [entry.rank for entry in roots] or sorted(hold.waiting)
    who = rank_list([entry.rank for entry in roots])
    act = "both act" if len(roots) == 2 else "each act"
    many = f"{who} {act} as root" if roots else "no rank acts as root"
    before = f"; until then the root was {rank_list(usual)}" if len(usual) == 1 else ""
    entries = roots or hold.entries()
    return raising.finding(
        "collective.root_mismatch",
        Severity.FAILURE,
        ranks,
        f"In {op} (collective {hold.seq} of {hold.group.label}), {many}{before}.",
        where(hold.group, hold.seq, op),
        shown(entries, [entry for entry in entries if entry.rank in ranks]),
        roots=[entry.rank for entry in roots],
        minority=not tie,
        tie=tie,
    )


def _lists(op: str, input_sizes: str | None, output_sizes: str | None) -> bool:
    counted = elements(output_sizes if op == "gather" else input_sizes)
    return counted is not None and sum(json.loads(counted)) > 0


def _usual_roots(records: Records, hold: Recorded, op: str) -> list[int]:
    """The ranks that were roots of this operation earlier in this group."""
    rows = records.query(
        "SELECT DISTINCT rank, input_sizes, output_sizes FROM recorded WHERE group_id = ? AND op = ? AND seq < ?",
        [hold.group.id, op, hold.seq],
    )
    return sorted({row["rank"] for row in rows if _lists(op, row["input_sizes"], row["output_sizes"])})


# --- hangs in which no rank is missing: every rank called, and no device has started what it called


def nobody_started(records: Records, fronts: Fronts) -> Finding | None:
    """A finding if ranks called operations more than a moment ago and no rank's device has started one."""
    ranks = sorted(rank for rank, status in fronts.status.items() if status == "not_started")
    if not ranks or any(status == "inside" for status in fronts.status.values()):
        return None
    entries = [_oldest(records, rank) for rank in ranks]
    called = [entry for entry in entries if entry is not None]
    told = [records.wait_s(entry.rank, entry.created_ns) for entry in called]
    waits = [wait_s for wait_s in told if wait_s is not None]
    if not called or (waits and max(waits) < records.patience_s):
        return None
    limits = {entry.timeout_ms for entry in called if entry.timeout_ms}
    return raising.finding(
        "collective.nobody_started",
        Severity.WARNING,
        ranks,
        f"{rank_list(ranks).capitalize()} called {called[0].op} and later operations, but no GPU has started any: "
        "all GPUs are still busy with earlier work.",
        where(None, None, called[0].op),
        shown(called),
        complete=len(ranks) == len(records.ranks),
        wait_s=round(max(waits), 1) if waits else None,
        timeout_s=min(limits) / 1000 if limits else None,
    )


def stands_in_something(records: Records, fronts: Fronts) -> bool:
    """Whether a rank may have been blocked for long in an operation that its record does not show.

    The record may have lost it, its backend may not record it, or its GPU has started nothing that is pending. Times
    that are unknown count as long.
    """
    if long_silent(records, [rank for rank, status in fronts.status.items() if status == "hidden"]):
        return True
    for rank, status in fronts.status.items():
        if status in ("unseen", "not_started"):
            entry = _oldest(records, rank)
            wait_s = records.wait_s(rank, entry.created_ns) if entry else None
            if wait_s is None or wait_s >= records.patience_s:
                return True
    return False


def _oldest(records: Records, rank: int) -> Entry | None:
    pending = [group.pending[rank] for group in records.groups.values() if rank in group.pending]
    return min(pending, key=lambda entry: entry.record_id, default=None)
