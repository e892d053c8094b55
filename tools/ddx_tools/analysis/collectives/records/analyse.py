"""All findings that flight records give, over the merged store of all ranks and hosts."""

from __future__ import annotations

from ddx_tools.analysis.collectives.records import simultaneity
from ddx_tools.analysis.collectives.records.call_sites import groups_with_conflicts
from ddx_tools.analysis.collectives.records.exchanges import exchange_mismatches
from ddx_tools.analysis.collectives.records.fronts import fronts_of
from ddx_tools.analysis.collectives.records.group_choice import group_mismatches
from ddx_tools.analysis.collectives.records.lateness import arrives_late
from ddx_tools.analysis.collectives.records.matching import Disagreements, disagreements, mismatches
from ddx_tools.analysis.collectives.records.progress import frozen_ranks, is_unsettled, ranks_behind, stands_still
from ddx_tools.analysis.collectives.records.recorded_graph import recorded_graph
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.roots import root_mismatches
from ddx_tools.analysis.collectives.records.shift_findings import shifted_calls
from ddx_tools.analysis.collectives.records.stalls import nobody_started, stands_in_something
from ddx_tools.analysis.collectives.records.wait_findings import awaited_if_hung, point_to_point, waiting
from ddx_tools.analysis.collectives.records.waits import find_holds
from ddx_tools.model import Finding
from ddx_tools.store import Store


def analyse(store: Store) -> list[Finding]:
    """Findings, the most telling first."""
    records = store.derived(Records)
    return analyse_records(records) if records.ranks else []


def analyse_records(records: Records) -> list[Finding]:
    """Findings about records that are loaded already."""
    faults: list[Finding] = []
    deviating: dict[int, set[int]] = {}
    differing = disagreements(records)
    conflicts = groups_with_conflicts(records)
    for group in records.groups.values():
        if group.id not in differing and group.id not in conflicts:
            continue
        matched = mismatches(records, group, differing.get(group.id, Disagreements()))
        blamed = {rank for finding in matched if not finding.attributes["tie"] for rank in finding.ranks}
        shifted = shifted_calls(records, group, conflicts[group.id], blamed) if group.id in conflicts else []
        deviating[group.id] = {
            rank
            for finding in (*matched, *shifted)
            if not finding.attributes["tie"] and finding.code != "collective.dtype_mismatch"
            for rank in finding.ranks
        }
        faults += [_with_origin(finding, shifted) for finding in matched] + shifted
    fronts = fronts_of(records)
    behind = ranks_behind(records)
    holds = find_holds(records, fronts, deviating)
    graph = recorded_graph(records, fronts, holds, set().union(*deviating.values()))
    unsettled = is_unsettled(records, fronts, holds, graph)
    frozen = set[int]() if unsettled else frozen_ranks(records, behind, graph)
    moving = unsettled or bool({each.rank for each in behind} - frozen)
    undated = all(record.taken_ns is None for record in records.ranks.values())
    if moving and undated:
        # What is pending in a job that moves is no wait, as long as nothing tells for how long it has been.
        faults += awaited_if_hung(records, graph)
        holds, graph = [], None
    elif graph is None and records.only_active:
        # Dumps of active work are taken of jobs that hang, and tell nothing of how long their operations take.
        short = find_holds(records, fronts, deviating, patience_s=0.0)
        faults += awaited_if_hung(records, recorded_graph(records, fronts, short, set()))
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
    dated = all(record.taken_ns is not None for record in records.ranks.values())
    if (
        not (faults or unread or (apart and not dated))
        and known
        and (moving or not stands_in_something(records, fronts))
        and simultaneity.overlap(records)
    ):
        about.append(simultaneity.consistent(records))
    if others := simultaneity.other_attempts(records):
        about.append(others)
    return faults + about


def _with_origin(finding: Finding, shifted: list[Finding]) -> Finding:
    """A different operation is often only where an earlier shift of the calls comes to light."""
    earlier = [each for each in shifted if each.attributes["seq"] <= finding.attributes["seq"]]
    if not earlier or finding.code != "collective.operation_mismatch":
        return finding
    first = min(earlier, key=lambda each: int(each.attributes["seq"]))
    origin = {key: first.attributes[key] for key in ("seq", "kind", "call", "shift")}
    origin["ranks"] = first.ranks
    told = dict(finding.attributes)
    if origin["kind"] == "extra_call":
        # Its calls are late by one, and nothing was left out where that comes to light.
        told = {key: value for key, value in told.items() if key not in ("left_out", "left_out_calls")}
    return finding.model_copy(update={"attributes": {**told, "first_site_divergence": origin}})
