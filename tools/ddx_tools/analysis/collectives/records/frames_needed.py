"""Which ranks' frames decide something, from metadata alone: frames are dear, so most ranks are not asked."""

from __future__ import annotations

from ddx_tools.analysis.collectives.records.analyse import analyse_records
from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.model import Finding
from ddx_tools.store import Store

_DIVERGENCES = (
    "collective.operation_mismatch",
    "collective.shape_mismatch",
    "collective.dtype_mismatch",
    "collective.missing_ranks",
)
_MAX_DEVIATING = 4
_WITNESSES = 2
"""Peers that did as the majority: with two of them a single deviating rank is outvoted."""
_MAX_RANKS = 16


def ranks_whose_frames_decide(store: Store) -> set[int]:
    """The deviating ranks and two witnesses of each divergence; without a divergence all ranks (at most 16).

    A silent mispairing leaves the metadata in agreement: then only call sites can tell.
    """
    records = store.derived(Records)
    divergences = [finding for finding in analyse_records(records) if finding.code in _DIVERGENCES]
    if not divergences:
        return set(sorted(records.ranks)[:_MAX_RANKS])
    # One rank may be missing in all of its groups: the frames of one of them tell as much.
    first = {tuple(finding.ranks): finding for finding in reversed(divergences)}
    return {rank for finding in first.values() for rank in _of(records, finding)}


def _of(records: Records, finding: Finding) -> set[int]:
    ranks = set(finding.ranks)
    fitting = [group for group in records.groups.values() if _is_group_of(group, finding, ranks)]
    members = sorted({rank for group in fitting for rank in group.ranks() if rank in records.ranks})
    witnesses = [rank for rank in members if rank not in ranks][:_WITNESSES]
    return {*sorted(ranks)[:_MAX_DEVIATING], *witnesses}


def _is_group_of(group: Group, finding: Finding, ranks: set[int]) -> bool:
    return group.label == finding.group and ranks <= set(group.ranks())
