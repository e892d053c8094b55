"""A thread that keeps Python's global lock from the thread that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.stacks.common import evidence_of_row, make_finding, place_of_row
from ddx_tools.stacks.view import RankView
from ddx_tools.store import Store

_LEAST_LOOKS = 2
"""Somebody holds the lock in every look at a healthy program; seldom the same thread, in the same call."""


def held_global_locks(store: Store, outside: Sequence[RankView]) -> list[Finding]:
    """Ranks of which one side thread had the lock in every look, in one call, while the main thread did not get on."""
    findings = []
    for view in outside:
        threads = _by_thread(store, view)
        mains = [rows for rows in threads if rows[0]["is_main"]]
        holders = [rows for rows in threads if not rows[0]["is_main"] and _keeps_the_lock(rows)]
        if len(mains) == 1 and len(holders) == 1 and _wants_the_lock(mains[0]):
            findings.append(_held(view, holders[0][-1], len(holders[0])))
    return findings


def _by_thread(store: Store, view: RankView) -> list[list[dict[str, Any]]]:
    """The rows of each thread that every look showed, in the order of the looks."""
    rows = store.query(
        "SELECT t.*, f.is_user AS in_own_code FROM stack_threads t "
        "LEFT JOIN (SELECT * FROM stack_frames WHERE depth = 0) f USING (host, pid, snapshot, tid) "
        "WHERE t.host = ? AND t.pid = ? ORDER BY t.tid, t.snapshot",
        [view.host, view.pid],
    )
    looks = len({row["snapshot"] for row in rows})
    threads: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        threads.setdefault(row["tid"], []).append(row)
    return [of_thread for of_thread in threads.values() if len(of_thread) == looks >= _LEAST_LOOKS]


def _keeps_the_lock(rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["owns_gil"] for row in rows) and _stands(rows)


def _wants_the_lock(rows: Sequence[dict[str, Any]]) -> bool:
    """Who waits for the global lock stands in one place, in no other wait, and wakes again and again to ask for it."""
    last = rows[-1]
    if not _stands(rows) or (last["wchan"] and not last["wchan"].startswith("futex")):
        return False
    asks = last["activity"] == "lock_wait" and last["in_own_code"] and last["switched"]
    return bool(asks) or last["activity"] == "idle" or (last["activity"] == "running" and bool(last["wchan"]))


def _stands(rows: Sequence[dict[str, Any]]) -> bool:
    return len({row["frames_key"] for row in rows}) == 1


def _held(view: RankView, holder: dict[str, Any], looks: int) -> Finding:
    place = place_of_row(holder)
    name = holder["thread"] or holder["tid"]
    waits = f" at {view.place.short()}" if view.place else ""
    finding = make_finding(
        "rank.gil_held",
        Severity.FAILURE,
        [view],
        f"thread {name} of {rank_list([view.rank])} has Python's global lock at {place.short()} in {looks} looks, "
        f"and the main thread does not get on{waits}",
        thread=str(name),
        computes=bool(holder["running"]),
        looks=looks,
        main_place=view.place.short() if view.place else None,
    )
    finding.locations = [place]
    finding.evidence = [evidence_of_row(holder)]
    return finding
