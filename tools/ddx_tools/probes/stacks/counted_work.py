"""Work that a rank counts in its output while its peers wait: whether it moves, ends in time, and was seen before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddx_tools.analysis.collectives.stacks.main_threads import RankView, make_finding
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.evaluation_words import evaluates

_SHORTEST_LIMIT_S = 600.0
"""The shortest default timeout of a process group (NCCL, torch 2.2 and later)."""


@dataclass(frozen=True)
class CountedWork:
    """Work whose count rose between samples."""

    ranks: tuple[int, ...]
    done_before: int
    done: int
    total: int
    left_s: float
    """How long the rest takes, at the slower of two paces: between samples, or since the peers started to wait."""
    limit_s: float | None
    """The timeout of the peers' call in flight records; None if they have none."""
    waited_s: float
    """The least time that the peers have waited."""
    repeated: bool
    """The same work was done before, and training went on after it."""

    @property
    def within_limit(self) -> bool:
        """Whether the work will finish before its peers time out; without a recorded timeout, the shortest default
        applies."""
        return self.waited_s + self.left_s < (self.limit_s or _SHORTEST_LIMIT_S)

    @property
    def words(self) -> str:
        """One sentence that says which ranks count what, and how long the rest takes."""
        return (
            f"{rank_list(list(self.ranks))} counts work of its own: {self.done_before}, then {self.done} of "
            f"{self.total}; the rest takes about {self.left_s:.0f} s at this pace"
        )


def counted_work(store: Store, outside: Sequence[RankView], waiting: Sequence[RankView]) -> list[CountedWork]:
    """Return the work of ranks outside a collective that they count in their output, if the count rose.

    `outside` are these ranks, `waiting` those that wait for them. An output that several ranks share counts only if a
    single rank is outside.
    """
    rows = store.query(
        "SELECT host, rank, counted, done_before, done, total, repeated FROM outputs WHERE done > done_before"
    )
    waited_s = max((view.wait_s for view in waiting), default=0.0)
    found = []
    for row in rows:
        own = [view for view in outside if view.host == row["host"] and row["rank"] in (view.rank, None)]
        apart_s = _seconds_apart(store, row["host"])
        if not own or (row["rank"] is None and len(outside) > 1) or not apart_s:
            continue
        # Counts are printed only now and then, so few fall between two samples.
        pace_s = max(apart_s / (row["done"] - row["done_before"]), waited_s / row["done"])
        found.append(
            CountedWork(
                ranks=tuple(view.rank for view in own),
                done_before=row["done_before"],
                done=row["done"],
                total=row["total"],
                left_s=round((row["total"] - row["done"]) * pace_s, 1),
                limit_s=_limit_s(store),
                waited_s=waited_s,
                repeated=row["repeated"] or _was_done_before(store, row["counted"]),
            )
        )
    return found


def counted_work_findings(works: Iterable[CountedWork], views: Sequence[RankView]) -> list[Finding]:
    """Return one finding for each piece of counted work."""
    return [
        make_finding(
            "rank.work_counted",
            Severity.NOTICE,
            [view for view in views if view.rank in work.ranks],
            work.words,
            done=work.done,
            total=work.total,
            left_s=work.left_s,
            limit_s=work.limit_s,
            within_limit=work.within_limit,
            repeated=work.repeated,
        )
        for work in works
    ]


def _seconds_apart(store: Store, host: str) -> float | None:
    (row,) = store.query("SELECT max(taken_s) - min(taken_s) AS apart_s FROM stack_threads WHERE host = ?", [host])
    return float(row["apart_s"]) if row["apart_s"] else None


def _limit_s(store: Store) -> float | None:
    (row,) = store.query("SELECT min(timeout_ms) AS limit_ms FROM collectives WHERE NOT done AND timeout_ms > 0")
    return row["limit_ms"] / 1000 if row["limit_ms"] else None


def _was_done_before(store: Store, shape: str) -> bool:
    """Whether a log has a line of that shape above a line of a training step."""
    rows = store.query("SELECT rank, source, source_line, details FROM log_events WHERE kind = 'step'")
    steps = [(row["rank"], row["source"], row["source_line"], json.loads(row["details"])) for row in rows]
    counts = [(rank, source, line) for rank, source, line, told in steps if told.get("shape") == shape]
    training = [
        (rank, source, line)
        for rank, source, line, told in steps
        if not told.get("own_work") and not evaluates(told.get("shape") or "")
    ]
    return any(
        (rank, source) == (same_rank, same_source) and line < later
        for rank, source, line in counts
        for same_rank, same_source, later in training
    )
