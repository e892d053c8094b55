"""The stacks of all ranks as an icicle: outermost frames on top, each as wide as its number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Location, rank_list
from ddx_tools.model.grouping import gathered

_MOST_BOXES, _MOST_DEEP = 400, 48
_MOST_STACKS = 12


@dataclass(frozen=True)
class IcicleBox:
    """A frame; its position is in percent of the full width and in rows from the top."""

    label: str
    title: str
    left: float
    width: float
    row: int
    is_user: bool
    blamed: bool


@dataclass(frozen=True)
class StackIcicle:
    """The main threads of all ranks at the last snapshot."""

    boxes: list[IcicleBox]
    rows: int
    ranks: int
    stacks: list[tuple[str, list[str]]]
    """The distinct stacks as text: ranks and frames, innermost frame first."""
    left_out: int
    """The number of distinct stacks not listed as text."""


@dataclass
class _Branch:
    label: str = ""
    is_user: bool = False
    ranks: set[int] = field(default_factory=set)
    below: dict[str, _Branch] = field(default_factory=dict)


def stack_icicle(store: Store, blamed: frozenset[int]) -> StackIcicle | None:
    """Build the icicle from a store's rows; None if there is no stack of any rank."""
    if not store.holds_any(["stack_frames"]):
        return None
    threads = gathered((row["frames_key"], row) for row in store.query(_THREADS))
    if not threads:
        return None
    root = _Branch()
    told: list[tuple[list[int], list[str]]] = []
    for same in threads.values():
        ranks = sorted({row["rank"] for row in same})
        first = same[0]
        frames = store.query(_FRAMES, [first[name] for name in ("host", "pid", "snapshot", "tid")])
        told.append((ranks, [_line(frame) for frame in frames]))
        _add(root, list(reversed(frames))[:_MOST_DEEP], set(ranks))
    boxes = list(_boxes(root, blamed))[:_MOST_BOXES]
    told.sort(key=lambda one: (not blamed & set(one[0]), len(one[0]), one[0]))
    stacks = [(rank_list(ranks), lines) for ranks, lines in told[:_MOST_STACKS]]
    rows = max((box.row for box in boxes), default=-1) + 1
    return StackIcicle(boxes, rows, len(root.ranks), stacks, len(told) - len(stacks))


_THREADS = """
SELECT host, rank, pid, snapshot, tid, coalesce(frames_key, host || pid) AS frames_key FROM stack_threads
WHERE is_main AND role = 'rank' AND rank IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY host, rank, pid ORDER BY snapshot DESC) = 1 ORDER BY rank
"""
_FRAMES = """
SELECT file, line, function, is_user, code FROM stack_frames
WHERE host = ? AND pid = ? AND snapshot = ? AND tid = ? ORDER BY depth LIMIT 200
"""


def _line(frame: dict[str, Any]) -> str:
    code = f"    {frame['code'].strip()}" if frame["is_user"] and frame["code"] else ""
    return f"{frame['function']}  {frame['file']}:{frame['line']}{code}"


def _add(root: _Branch, frames: list[dict[str, Any]], ranks: set[int]) -> None:
    at = root
    at.ranks |= ranks
    for frame in frames:
        place = Location(file=frame["file"] or "?", line=frame["line"]).short()
        label = f"{frame['function']} {place}"
        at = at.below.setdefault(label, _Branch(label, bool(frame["is_user"])))
        at.ranks |= ranks


def _boxes(root: _Branch, blamed: frozenset[int]) -> Iterator[IcicleBox]:
    """Yield boxes with wide frames first in each row, so that only narrow ones are cut."""
    pending = [(root, 0.0, 100.0, -1)]
    while pending:
        branch, left, width, row = pending.pop(0)
        if row >= 0:
            title = f"{branch.label}: {rank_list(branch.ranks)}"
            mine = bool(blamed & branch.ranks) and branch.ranks <= blamed
            yield IcicleBox(branch.label, title, left, width, row, branch.is_user, mine)
        # A rank with two processes can be in several children.
        total = max(len(branch.ranks), sum(len(child.ranks) for child in branch.below.values())) or 1
        at = left
        for child in sorted(branch.below.values(), key=lambda one: min(one.ranks)):
            share = width * len(child.ranks) / total
            pending.append((child, round(at, 3), round(share, 3), row + 1))
            at += share
