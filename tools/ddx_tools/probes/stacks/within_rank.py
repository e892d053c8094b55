"""What blocks a rank inside its own processes: locks between its threads, workers that do not move."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.analysis.collectives.records.usual_waits import STANDING_S
from ddx_tools.analysis.collectives.stacks.main_threads import (
    CHILD,
    RankView,
    at,
    evidence_of_row,
    make_finding,
    place_of_row,
    who,
)
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Finding, Severity


def busy_threads(store: Store, views: Sequence[RankView]) -> int:
    """Return how many side threads of these ranks worked, or slept in user code: a main thread may wait for one.

    A thread that sleeps in user code wakes up by itself. One that is blocked in a transfer with the outside, such as an
    upload, works if the kernel woke it between two samples.
    """
    rules = frame_rules()
    rows = [
        row
        for view in views
        for row in store.query(
            "SELECT activity, running, moved, user_stack FROM stack_threads WHERE host = ? AND pid = ? AND NOT is_main "
            "AND snapshot = (SELECT max(snapshot) FROM stack_threads WHERE host = ? AND pid = ?)",
            [view.host, view.pid, view.host, view.pid],
        )
    ]
    working = [row for row in rows if row["running"] and row["activity"] in rules.busy]
    own = [row for row in rows if json.loads(row["user_stack"] or "[]")]
    asleep = [row for row in own if row["activity"] == "sleep"]
    transferring = [row for row in own if row["activity"] in rules.transfers and row["moved"] and row not in working]
    return len(working) + len(asleep) + len(transferring)


def lock_waits(store: Store, outside: Sequence[RankView]) -> Iterator[Finding]:
    """Yield a finding for each rank with threads that wait for locks in user code; two such threads may block each
    other."""
    for view in outside:
        rows = store.query(
            "SELECT t.* FROM stack_threads t JOIN stack_frames f USING (host, pid, snapshot, tid) "
            "WHERE t.host = ? AND t.pid = ? AND t.activity = 'lock_wait' AND f.depth = 0 AND f.is_user "
            "AND t.moved IS NOT TRUE AND t.snapshot = "
            "(SELECT max(snapshot) FROM stack_threads WHERE host = t.host AND pid = t.pid) "
            "ORDER BY t.is_main DESC, t.tid",
            [view.host, view.pid],
        )
        if not rows:
            continue
        names = ", ".join(f"{row['thread'] or row['tid']} at {place_of_row(row).short()}" for row in rows)
        yield make_finding(
            "rank.lock_wait",
            Severity.FAILURE,
            [view],
            f"threads of {who([view])} wait for locks: {names}",
            places=map(place_of_row, rows),
            threads=len(rows),
            circular=len(rows) > 1,
            main=bool(rows[0]["is_main"]),
        )


def stuck_workers(store: Store, outside: Sequence[RankView]) -> Iterator[Finding]:
    """Yield a finding for each worker process, of a rank outside the collective, that neither moves nor waits for work.

    One sample cannot show whether a worker moves. Then a wait for a lock counts, because a worker seldom has another
    thread that would release it.
    """
    for view in outside:
        rows = _last_rows(store, view, "%_worker")
        stuck = [
            row
            for row in rows
            if not loads(store, view)
            and row["activity"] != "worker_idle"
            and (row["moved"] is False or (view.brought and row["activity"] == "lock_wait"))
        ]
        for row in stuck:
            place = place_of_row(row)
            words = frame_rules().words(row["activity"])
            still = "does not move: " if row["moved"] is False else "is "
            yield make_finding(
                "rank.worker_stuck",
                Severity.FAILURE,
                [view],
                f"worker process {row['pid']} of {who([view])} {still}{words} at {place.short()}",
                evidence=[evidence_of_row(row)],
                places=[place, view.place],
                role=row["role"],
                activity=row["activity"],
                pid=row["pid"],
                worker_place=place.short(),
            )


def loads(store: Store, view: RankView) -> bool:
    """Return whether a rank waits for data-loader workers that sleep and will wake up by themselves.

    All its workers with work must sleep without moving, and the rank must not have waited too long. A worker that wakes
    and sleeps again at the same place polls for something that may never come.
    """
    rows = _last_rows(store, view, "dataloader_worker") if view.activity == "data_wait" else []
    at_work = [row for row in rows if row["activity"] != "worker_idle"]
    asleep = bool(at_work) and all(row["activity"] == "sleep" and row["moved"] is False for row in at_work)
    return asleep and view.wait_s < STANDING_S


def _last_rows(store: Store, view: RankView, role: str) -> list[dict[str, Any]]:
    """The main threads of a rank's processes with this role (a LIKE pattern), as the last sample showed them."""
    return store.query(
        "SELECT * FROM stack_threads WHERE host = ? AND rank = ? AND role LIKE ? AND is_main "
        "QUALIFY row_number() OVER (PARTITION BY pid ORDER BY snapshot DESC) = 1 ORDER BY pid",
        [view.host, view.rank, role],
    )


def awaited_children(store: Store, outside: Sequence[RankView]) -> Iterator[Finding]:
    """Yield findings about child processes that ranks wait for: what each is doing, according to the kernel."""
    for view in outside:
        for row in _last_rows(store, view, CHILD):
            words = frame_rules().words(row["activity"])
            yield make_finding(
                "rank.awaits_child",
                Severity.WARNING,
                [view],
                f"{who([view])} waits for its child process {row['thread']} (pid {row['pid']}), which is "
                f"{words}{at(view)}",
                activity=row["activity"],
                name=row["thread"],
                pid=row["pid"],
                state=row["state"],
                wchan=row["wchan"],
                moving=row["moved"],
            )


def called_by_program(store: Store, view: RankView) -> list[Evidence]:
    """Return the library frame that the user's innermost line called, as py-spy prints it: it shows what the rank waits
    for."""
    rows = store.query(
        "SELECT f.function, f.file, f.line, f.source_line FROM stack_frames f "
        "JOIN stack_threads t ON (t.host, t.pid, t.snapshot, t.tid) = (f.host, f.pid, f.snapshot, f.tid) "
        "WHERE t.is_main AND t.role = 'rank' AND t.host = ? AND t.pid = ? AND t.rank = ? AND NOT f.is_user "
        "AND t.snapshot = (SELECT max(l.snapshot) FROM stack_threads l WHERE l.is_main AND l.role = 'rank' "
        "AND (l.host, l.pid, l.rank) = (t.host, t.pid, t.rank)) "
        "AND f.depth < (SELECT min(u.depth) FROM stack_frames u WHERE u.is_user "
        "AND (u.host, u.pid, u.snapshot, u.tid) = (f.host, f.pid, f.snapshot, f.tid)) "
        "ORDER BY f.depth DESC LIMIT 1",
        [view.host, view.pid, view.rank],
    )
    return [
        Evidence(source=view.source, line=row["source_line"], quote=f"{row['function']} ({row['file']}:{row['line']})")
        for row in rows
    ]
