"""Each rank's main thread over all samples: what it does, whether it moves, how long it has waited."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.findings import FindingPlace
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity, distinct, rank_list
from ddx_tools.model.grouping import gathered

UserFrame = tuple[str, int, str]

_QUOTE_LIMIT = 400
_ENDED = "SELECT DISTINCT pid FROM log_events WHERE superseded AND kind = 'exit' AND pid IS NOT NULL"


@dataclass(frozen=True)
class RankView:
    """One rank as its stack samples show it: where its main thread is, whether it moves, and how long it has waited."""

    host: str
    rank: int
    pid: int
    state: str | None
    wchan: str | None
    activity: str
    operation: str | None
    contexts: tuple[str, ...]
    moved: bool | None
    """It ran or its stack changed between samples; None with a single sample, or if the kernel does not show it."""
    wait_s: float
    """Minimum time for which it has not moved, in seconds."""
    brought: bool
    """The dump was passed in as a file, so it is unknown when it was taken."""
    user_stack: tuple[UserFrame, ...]
    """User frames, outermost first."""
    user_source: str | None
    source: str
    source_line: int | None = None
    """In a file with several ranks: the number of the line that shows where this rank is."""
    source_text: str | None = None
    """Text of that line."""
    phase: str | None = None
    """Training phase, according to library frames."""

    @property
    def waits_for_peers(self) -> bool:
        """Whether it can only proceed when other ranks act."""
        return self.activity in frame_rules().waits_for_peers

    @property
    def stopped(self) -> bool:
        """Whether the kernel reports the process as stopped."""
        return self.state in ("T", "t")

    @property
    def place(self) -> Location | None:
        """The innermost line of the user's program."""
        return self.location(len(self.user_stack) - 1) if self.user_stack else None

    def location(self, depth: int) -> Location:
        """A user frame as a place; `depth` 0 is the outermost."""
        file, line, function = self.user_stack[depth]
        innermost = depth == len(self.user_stack) - 1
        return Location(file=file, line=line, function=function, source=self.user_source if innermost else None)

    @property
    def doing(self) -> str:
        """Activity and operation in words: `collective: all_reduce`."""
        return f"{self.activity}: {self.operation}" if self.operation else self.activity

    @property
    def standing(self) -> str:
        """Place, operation and source text in one line, for evidence."""
        place = self.place
        if place is None:
            return self.doing
        text = f": {place.source}" if place.source else ""
        return f"{place.file}:{place.line} {place.function}, {self.operation or self.activity}{text}"[:_QUOTE_LIMIT]

    def evidence(self) -> Evidence:
        """Return evidence for where the rank's main thread is, citing its stack dump.

        For a file with several ranks, it quotes the line of the file that shows this rank.
        """
        if self.source_line is not None:
            return Evidence(source=self.source, line=self.source_line, quote=(self.source_text or "")[:_QUOTE_LIMIT])
        return Evidence(source=self.source, quote=self.standing)


def rank_views(store: Store) -> list[RankView]:
    """Return the state of every rank's main thread according to its stack samples, in rank order.

    Stacks from an earlier attempt of the job are left out unless there are no others. A stack is from one if the
    launcher ended its process and then started the workers again.
    """
    rows = store.query(
        "SELECT * FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL "
        "ORDER BY rank, host, pid, snapshot"
    )
    ended = {row["pid"] for row in store.query(_ENDED)} if rows else set()
    rows = [row for row in rows if row["taken_s"] is not None or row["pid"] not in ended] or rows
    looks = gathered(((row["rank"], row["host"], row["pid"]), row) for row in rows)
    printed = store.query("SELECT host, rank FROM outputs WHERE stepped AND rank IS NOT NULL")
    stepped = {(row["rank"], row["host"]) for row in printed}
    return [_view(rank_rows, (rank, host) in stepped) for (rank, host, _), rank_rows in looks.items()]


def looks_of(store: Store, rank: int) -> list[str]:
    """Where a rank's main thread was in each sample, as lines from `RankView.standing`."""
    rows = store.query(
        "SELECT * FROM stack_threads WHERE is_main AND role = 'rank' AND rank = ? ORDER BY snapshot, host, pid", [rank]
    )
    return list(dict.fromkeys(_view([row], stepped=False).standing for row in rows))


def _view(rows: list[dict[str, Any]], stepped: bool) -> RankView:
    """Combine one rank's samples. `stepped`: it printed further steps meanwhile, so it moved and came back."""
    last = rows[-1]
    moved = stepped or _moved(rows)
    brought = last["taken_s"] is None
    observed_s = 0.0 if brought else last["taken_s"] - rows[0]["taken_s"]
    # The kernel's own figure was read before ddx touched the thread; it is valid if the thread is still there.
    blocked_s = (last["blocked_s"] or 0.0) if not moved else 0.0
    as_read = (
        "host", "rank", "pid", "state", "wchan", "activity", "operation", "user_source", "source", "source_line",
        "source_text", "phase",
    )  # fmt: skip
    return RankView(
        **{name: last[name] for name in as_read},
        contexts=tuple(json.loads(last["contexts"])),
        moved=moved,
        wait_s=round(max(blocked_s + observed_s, 0.0), 1) if not moved else 0.0,
        brought=brought,
        user_stack=tuple((str(f), int(n), str(name)) for f, n, name in json.loads(last["user_stack"])),
    )


def _moved(rows: list[dict[str, Any]]) -> bool | None:
    """Whether a thread moved: its stack changed, or it ran, except if it spins or polls while waiting."""
    if len(rows) < 2:
        return None
    if len({row["frames_key"] for row in rows}) > 1:
        return True
    last = rows[-1]
    shows_in = frame_rules().progress_shows_in(last["activity"], last["wchan"], last["running"])
    if shows_in == "nothing":
        return False
    column = {"switched": "switched", "ran": "moved"}[shows_in]
    seen = [row[column] for row in rows[1:] if row[column] is not None]
    return any(seen) if seen else None


# --- shared by the stack analyses: build findings from views, group views, find the deviating ones


def who(views: Iterable[RankView]) -> str:
    """The ranks of some views in words: `ranks 0-2`."""
    return rank_list([view.rank for view in views])


def make_finding(
    code: str,
    severity: Severity,
    views: Sequence[RankView],
    summary: str,
    *,
    evidence: list[Evidence] | None = None,
    places: Iterable[Location | None] | None = None,
    **attributes: Any,
) -> Finding:
    """Build a finding about ranks; by default with their dumps as evidence and their innermost user lines as places."""
    pointed = shown(views)
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted({view.rank for view in views}),
        hosts=sorted(pointed.hosts),
        summary=summary,
        evidence=pointed.evidence if evidence is None else evidence,
        locations=pointed.locations if places is None else distinct(places),
        attributes={"basis": "stacks", **attributes},
    )


def shown(views: Sequence[RankView]) -> FindingPlace:
    """Evidence, places and hosts of ranks.

    The host of a submitted dump is unknown: where it was read does not show where it was taken.
    """
    hosts = {view.host for view in views if not view.brought}
    return FindingPlace([view.evidence() for view in views[:4]], distinct(view.place for view in views), hosts)


def at(view: RankView) -> str:
    """ " at train.py:41 step", or an empty string if the place is unknown."""
    return f" at {view.place.short()}" if view.place else ""


def minority_of(parties: list[list[RankView]]) -> tuple[list[RankView], list[RankView], bool]:
    """(deviating ranks, largest set, tie): the ranks outside the largest set, or none if there is a tie."""
    ordered = sorted(parties, key=len, reverse=True)
    rest = [view for members in ordered[1:] for view in members]
    tie = len(rest) >= len(ordered[0])
    return ([] if tie else rest), ordered[0], tie


def place_of_row(row: dict[str, Any]) -> Location:
    """The innermost user line in a row of `stack_threads`."""
    file, line, function = (json.loads(row["user_stack"]) or [("unknown", None, None)])[-1]
    return Location(file=file, line=line, function=function, source=row["user_source"])


def evidence_of_row(row: dict[str, Any]) -> Evidence:
    """Evidence for the innermost user line in a row of `stack_threads`; for a file with several ranks, its line."""
    if row["source_line"] is not None:
        return Evidence(source=row["source"], line=row["source_line"], quote=row["source_text"] or "")
    place = place_of_row(row)
    return Evidence(source=row["source"], quote=f"{place.file}:{place.line} {place.function}")


def grouped(views: Iterable[RankView], key: Callable[[RankView], Any]) -> list[list[RankView]]:
    """Group views by key, largest group first, equally large groups in rank order."""
    groups = gathered((key(view), view) for view in views)
    return sorted(groups.values(), key=lambda members: (-len(members), members[0].rank))


# --- kinds of raw items from the probe `stacks`, and the moments within a sample that they belong to

STACK, THREADS, SOURCE, UNREAD, OUTPUT = "stack", "threads", "source", "unread", "output"
ADVANCE, COUNTERS = "advance", "counters"
"""From a rank's debug server: whether its record grew between samples, and torch's wait counters."""
NATIVE = "native"
"""The dump of a rank with native frames, which distinguish a wait for its GPU from work."""
LOCKS = "locks"
"""/proc/locks: which processes hold locks on files that ranks wait to lock."""
BEFORE, AFTER = "before", "after"
CHILD = "child"
"""Role of a process that a rank started and waits for, and that is not known to be Python."""
