"""A CUDA memory snapshot: what is held, by whom, when it was most, and what the allocator cannot give.

Source: torch/cuda/memory.py (_snapshot, _dump_snapshot) and torch/csrc/cuda/memory_snapshot.cpp of torch 2.1 to 2.13:
`segments` with their `blocks`, and `device_traces` of what was allocated and freed before. A trace may begin late: what
was allocated before is known by what is left of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ddx_tools.errors import UnreadableInput
from ddx_tools.parsers.flight_records.fr_pickle import load
from ddx_tools.parsers.python.user_frames import is_user_file
from ddx_tools.yaml_data import shipped

MAX_BYTES = 1 << 30
_MOST_FRAMES = 200
_MOST_HOLDERS = 40
_ACTIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")

Place = tuple[str, int, str]
"""File, line and function of the user's program; empty if no frame is its own."""
Holders = list[tuple[str, Place, int, int]]
"""(holder, place, bytes, blocks), most bytes first."""


@dataclass
class DeviceMemory:
    """What a snapshot says of one GPU; sizes in bytes."""

    device: int
    reserved: int = 0
    allocated: int = 0
    segments: int = 0
    largest_free: int = 0
    """Of the pieces that are reserved and unused."""
    expandable: bool = False
    peak: int | None = None
    """Most that was allocated at once while the trace was recorded; None without a trace."""
    held: Holders = field(default_factory=list)
    held_at_peak: Holders = field(default_factory=list)
    tried: int | None = None
    """What was asked for when memory ran out."""
    device_free: int | None = None
    events: int = 0

    @property
    def unused(self) -> int:
        """Reserved, and not allocated."""
        return max(0, self.reserved - self.allocated)


def read_snapshot(data: bytes) -> list[DeviceMemory]:
    """The GPUs of a snapshot. Raises `UnreadableInput` for what is none."""
    content = load(data, MAX_BYTES)
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(segments, list):
        raise UnreadableInput("a pickle, and no memory snapshot: it has no segments")
    owners = _Owners()
    found: dict[int, DeviceMemory] = {}
    of_device: dict[int, list[tuple[str, Place, int]]] = {}
    for segment in segments:
        if not isinstance(segment, dict):
            raise UnreadableInput("no memory snapshot: a segment is no dictionary")
        number = _number(segment.get("device")) or 0
        mine = found.setdefault(number, DeviceMemory(number))
        mine.segments += 1
        mine.reserved += _number(segment.get("total_size")) or 0
        mine.expandable |= segment.get("is_expandable") is True
        blocks = segment.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            size = _number(block.get("size")) if isinstance(block, dict) else None
            if not size:
                continue
            if block.get("state") in _ACTIVE:
                mine.allocated += size
                of_device.setdefault(number, []).append((*owners.of(_frames_of(block)), size))
            else:
                mine.largest_free = max(mine.largest_free, size)
    traces = content.get("device_traces")
    for number, trace in enumerate(traces if isinstance(traces, list) else ()):
        if isinstance(trace, list) and trace:
            _follow(found.setdefault(number, DeviceMemory(number)), trace, owners, of_device.get(number, []))
    for number, mine in found.items():
        mine.held = _sum_up(of_device.get(number, []))
    return [found[number] for number in sorted(found) if found[number].reserved or found[number].events]


def _follow(mine: DeviceMemory, trace: list[Any], owners: _Owners, left: list[tuple[str, Place, int]]) -> None:
    """Find the peak: how much more than at the end was allocated once, going through the trace."""
    deltas: list[tuple[int, int, Any]] = []
    live: dict[int, tuple[int, Any]] = {}
    level = most = 0
    best = -1
    for entry in trace:
        if not isinstance(entry, dict):
            continue
        mine.events += 1
        action, size = entry.get("action"), _number(entry.get("size")) or 0
        address = _number(entry.get("addr")) or 0
        if action == "alloc":
            live[address] = (size, entry)
            level += size
            deltas.append((address, size, entry))
        elif action in ("free_requested", "free_completed", "free"):
            # A request and its completion are one release; what was allocated before the trace began is known by it.
            freed = live.pop(address, (size, None) if action == "free_requested" else None)
            if freed:
                level -= freed[0]
                deltas.append((address, -freed[0], None))
        elif action == "oom":
            mine.tried = size
            mine.device_free = _number(entry.get("device_free"))
        if level > most:
            best, most = len(deltas), level
    mine.peak = mine.allocated - level + most
    if best < 0:
        mine.held_at_peak = _sum_up(left)
        return
    at_peak: dict[int, tuple[int, Any]] = {}
    for address, size, entry in deltas[:best]:
        if size >= 0:
            at_peak[address] = (size, entry)
        else:
            at_peak.pop(address, None)
    known = [(*owners.of(_frames_of(entry)), size) for size, entry in at_peak.values()]
    # What lies there since before the trace began, as far as it was left at the end.
    before = Counter({(holder, place): size for holder, place, size, _ in _sum_up(left)})
    during = Counter(
        {
            (holder, place): size
            for holder, place, size, _ in _sum_up(
                [(*owners.of(_frames_of(entry)), size) for size, entry in live.values()]
            )
        }
    )
    known += [(holder, place, size) for (holder, place), size in (before - during).items()]
    mine.held_at_peak = _sum_up(known)


class _Owners:
    """Holder and place of a stack of frames; stacks repeat by the thousand."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[str, Place]] = {}
        self._of_frame: dict[int, tuple[str, Place | None]] = {}

    def of(self, frames: list[Any]) -> tuple[str, Place]:
        """(holder, place). Frames are innermost first, and shared: their identity is enough while they live."""
        key = tuple(map(id, frames[:_MOST_FRAMES]))
        if key not in self._known:
            read = [self._frame(frame) for frame in frames[:_MOST_FRAMES] if isinstance(frame, dict)]
            place = next((place for _, place in read if place), ("", 0, ""))
            names = [name for name, _ in read]
            holder = "unknown" if not read else _holder(names)
            self._known[key] = holder, place
        return self._known[key]

    def _frame(self, frame: dict[str, Any]) -> tuple[str, Place | None]:
        if id(frame) not in self._of_frame:
            file, function = str(frame.get("filename"))[:500], str(frame.get("name"))[:200]
            line = _number(frame.get("line")) or 0
            user = is_user_file(file) and file != "??"
            self._of_frame[id(frame)] = f"{file}:{function}", (file, line, function) if user else None
        return self._of_frame[id(frame)]


@cache
def _holders() -> list[tuple[str, re.Pattern[str]]]:
    return [(each["holder"], re.compile(each["frames"])) for each in shipped("memory_holders.yaml")["holders"]]


def _holder(frames: Sequence[str]) -> str:
    return next((name for name, words in _holders() if any(words.search(frame) for frame in frames)), "other")


def _sum_up(blocks: list[tuple[str, Place, int]]) -> Holders:
    sizes: Counter[tuple[str, Place]] = Counter()
    counts: Counter[tuple[str, Place]] = Counter()
    for holder, place, size in blocks:
        sizes[holder, place] += size
        counts[holder, place] += 1
    most = sizes.most_common(_MOST_HOLDERS)
    rest = sum(sizes.values()) - sum(size for _, size in most)
    named = [(holder, place, size, counts[holder, place]) for (holder, place), size in most]
    more = sum(counts.values()) - sum(count for *_, count in named)
    return [*named, ("other", ("", 0, ""), rest, more)] if rest else named


def _frames_of(block: dict[str, Any]) -> list[Any]:
    frames = block.get("frames")
    if frames is None:  # to torch 2.0
        history = block.get("history")
        first = history[0] if isinstance(history, list) and history else None
        frames = first.get("frames") if isinstance(first, dict) else None
    return frames if isinstance(frames, list) else []


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
