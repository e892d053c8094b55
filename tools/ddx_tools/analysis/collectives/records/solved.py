"""The waits in the flight records of all ranks, computed once for both the findings and the wait graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ddx_tools.analysis.collectives.records.device_positions import Fronts, fronts_of
from ddx_tools.analysis.collectives.records.mismatches import Disagreements, disagreements, mismatches
from ddx_tools.analysis.collectives.records.progress import Behind, frozen_ranks, is_unsettled, ranks_behind
from ddx_tools.analysis.collectives.records.recorded_graph import recorded_graph
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.shift_findings import groups_with_conflicts, shifted_calls
from ddx_tools.analysis.collectives.records.waits import Recorded, find_holds
from ddx_tools.analysis.collectives.wait_solver import SolvedWaits
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding


@dataclass
class Solved:
    """The waits in one set of records, with the mismatches and deviating ranks behind them."""

    records: Records
    matched: dict[int, tuple[list[Finding], list[Finding]]]
    """Per group: different calls under one number, and extra or missing calls of one side."""
    deviating: dict[int, set[int]]
    """Per group: the ranks that differ from a majority."""
    fronts: Fronts
    behind: list[Behind]
    holds: list[Recorded]
    graph: SolvedWaits[Recorded] | None
    moving: bool
    """The job went on while the records were taken."""
    frozen: set[int]

    @cached_property
    def undated(self) -> bool:
        """Whether it is unknown when the records were taken."""
        return all(record.taken_ns is None for record in self.records.ranks.values())

    @property
    def deviating_ranks(self) -> set[int]:
        """The ranks that differ from a majority in some group."""
        return set().union(*self.deviating.values())

    @cached_property
    def certain_holds(self) -> list[Recorded]:
        """Return the operations in which ranks are certain to be waiting.

        While the job makes progress, a pending operation counts only if its waiting time is known.
        """
        return [hold for hold in self.holds if hold.wait_s is not None] if self.moving else self.holds

    @cached_property
    def certain_graph(self) -> SolvedWaits[Recorded] | None:
        """Return the solved wait graph of `certain_holds` only; None if no rank waits for another."""
        if len(self.certain_holds) == len(self.holds):
            return self.graph
        return recorded_graph(self.records, self.fronts, self.certain_holds, self.deviating_ranks)


def solved(store: Store) -> Solved:
    """The waits in the flight records of a store, computed once per store; see `Store.derived`."""
    return solve(store.derived(Records))


def solve(records: Records) -> Solved:
    """Compute the waits in records that are already loaded."""
    matched: dict[int, tuple[list[Finding], list[Finding]]] = {}
    deviating: dict[int, set[int]] = {}
    differing = disagreements(records)
    conflicts = groups_with_conflicts(records)
    for group in records.groups.values():
        if group.id not in differing and group.id not in conflicts:
            continue
        found = mismatches(records, group, differing.get(group.id, Disagreements()))
        blamed = {rank for finding in found if not finding.attributes["tie"] for rank in finding.ranks}
        shifted = shifted_calls(records, group, conflicts[group.id], blamed) if group.id in conflicts else []
        matched[group.id] = (found, shifted)
        deviating[group.id] = {
            rank
            for finding in (*found, *shifted)
            if not finding.attributes["tie"] and finding.code != "collective.dtype_mismatch"
            for rank in finding.ranks
        }
    fronts = fronts_of(records)
    behind = ranks_behind(records)
    holds = find_holds(records, fronts, deviating)
    graph = recorded_graph(records, fronts, holds, set().union(*deviating.values()))
    unsettled = is_unsettled(records, fronts, holds, graph)
    frozen = set[int]() if unsettled else frozen_ranks(records, behind, graph)
    moving = unsettled or bool({each.rank for each in behind} - frozen)
    return Solved(records, matched, deviating, fronts, behind, holds, graph, moving, frozen)
