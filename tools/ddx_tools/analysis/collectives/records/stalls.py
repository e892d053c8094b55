"""Stalls in which nobody is missing: every rank called, and no device has come to what it called."""

from __future__ import annotations

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.records.fronts import Fronts
from ddx_tools.analysis.collectives.records.hidden_transfers import long_silent
from ddx_tools.analysis.collectives.records.records import Entry, Records
from ddx_tools.analysis.collectives.records.shown import shown, where
from ddx_tools.model import Finding, Severity, rank_list


def nobody_started(records: Records, fronts: Fronts) -> Finding | None:
    """Said if ranks have called operations for more than a moment, and no device of any rank is in one."""
    ranks = sorted(rank for rank, status in fronts.status.items() if status == "not_started")
    if not ranks or any(status == "inside" for status in fronts.status.values()):
        return None
    entries = [_oldest(records, rank) for rank in ranks]
    called = [entry for entry in entries if entry is not None]
    waits = [
        (taken - entry.created_ns) / 1e9
        for entry in called
        if (taken := records.ranks[entry.rank].taken_ns) is not None and entry.created_ns is not None
    ]
    if not called or (waits and max(waits) < records.patience_s):
        return None
    limits = {entry.timeout_ms for entry in called if entry.timeout_ms}
    return raising.finding(
        "collective.nobody_started",
        Severity.WARNING,
        ranks,
        f"{rank_list(ranks).capitalize()} called {called[0].op} and more, and no device has come to it: "
        "all are still at what they were given before.",
        where(None, None, called[0].op),
        shown(called),
        complete=len(ranks) == len(records.ranks),
        wait_s=round(max(waits), 1) if waits else None,
        timeout_s=min(limits) / 1000 if limits else None,
    )


def stands_in_something(records: Records, fronts: Fronts) -> bool:
    """Whether some rank has long been in what its ring has lost or never held, or its device has come to nothing."""
    if long_silent(records, [rank for rank, status in fronts.status.items() if status == "hidden"]):
        return True
    for rank, status in fronts.status.items():
        if status in ("unseen", "not_started"):
            taken, entry = records.ranks[rank].taken_ns, _oldest(records, rank)
            if taken is None or entry is None or entry.created_ns is None:
                return True
            if (taken - entry.created_ns) / 1e9 >= records.patience_s:
                return True
    return False


def _oldest(records: Records, rank: int) -> Entry | None:
    pending = [group.pending[rank] for group in records.groups.values() if rank in group.pending]
    return min(pending, key=lambda entry: entry.record_id, default=None)
