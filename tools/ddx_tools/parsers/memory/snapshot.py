"""Reads a CUDA memory snapshot: the memory held and its holders, the peak, and what the allocator cannot use.

Source: torch/cuda/memory.py (_snapshot, _dump_snapshot) and torch/csrc/cuda/memory_snapshot.cpp of torch 2.1 to 2.13:
`segments` with their `blocks`, and `device_traces` of earlier allocations and releases. A trace may begin late: earlier
allocations are known only if they were still held at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from ddx_tools.knowledge.load import shipped
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.grouping import gathered
from ddx_tools.model.user_frames import is_user_file
from ddx_tools.parsers.flight_records.fr_pickle import load
from ddx_tools.parsers.plain_json import LARGEST, whole

MAX_BYTES = 1 << 30
_MOST_FRAMES = 200
_MOST_HOLDERS = 40
_FEWEST_KEPT = 5
_ACTIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")

Place = tuple[str, int, str]
"""(file, line, function) in the user's program; empty if no frame belongs to it."""
_NOWHERE: Place = ("", 0, "")
_PARAMETERS = ("parameters", "sharded parameters")
Holders = list[tuple[str, Place, int, int]]
"""(holder, place, bytes, blocks), most bytes first."""


@dataclass
class DeviceMemory:
    """The memory of one GPU in a snapshot; sizes in bytes."""

    device: int
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    segments: int = 0
    largest_free_bytes: int = 0
    """The largest of the reserved but unused pieces."""
    expandable: bool = False
    peak_bytes: int | None = None
    """The most memory allocated at once while the trace was recorded; None without a trace."""
    held: Holders = field(default_factory=list)
    held_at_peak: Holders = field(default_factory=list)
    tried_bytes: int | None = None
    """The size of the allocation that failed when memory ran out."""
    tried_for: tuple[str, Place] | None = None
    """The holder and place of that allocation."""
    device_free_bytes: int | None = None
    events: int = 0
    updates: int = 0
    """The number of optimizer steps that allocate memory."""
    kept: Holders = field(default_factory=list)
    """Memory still held at the end that was allocated repeatedly with the same stack, with a backward in between."""


def read_snapshot(data: bytes) -> list[DeviceMemory]:
    """Return the GPUs in a snapshot. Raises `UnreadableInput` if it is not one."""
    content = load(data, MAX_BYTES)
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(segments, list):
        raise UnreadableInput("a pickle, but not a memory snapshot: it has no segments")
    owners = _Owners()
    found: dict[int, DeviceMemory] = {}
    of_device: dict[int, list[tuple[str, Place, int]]] = {}
    for segment in segments:
        if not isinstance(segment, dict):
            raise UnreadableInput("not a memory snapshot: a segment is not a dictionary")
        number = whole(segment.get("device"), LARGEST) or 0
        mine = found.setdefault(number, DeviceMemory(number))
        mine.segments += 1
        mine.reserved_bytes += whole(segment.get("total_size"), LARGEST) or 0
        mine.expandable |= segment.get("is_expandable") is True
        blocks = segment.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            size = whole(block.get("size"), LARGEST) if isinstance(block, dict) else None
            if not size:
                continue
            if block.get("state") in _ACTIVE:
                mine.allocated_bytes += size
                of_device.setdefault(number, []).append((*owners.of(_frames_of(block)), size))
            else:
                mine.largest_free_bytes = max(mine.largest_free_bytes, size)
    traces = content.get("device_traces")
    for number, trace in enumerate(traces if isinstance(traces, list) else ()):
        if isinstance(trace, list) and trace:
            _follow(found.setdefault(number, DeviceMemory(number)), trace, owners, of_device.get(number, []))
    for number, mine in found.items():
        mine.held = _sum_up(of_device.get(number, []))
    return [found[number] for number in sorted(found) if found[number].reserved_bytes or found[number].events]


def _follow(mine: DeviceMemory, trace: list[Any], owners: _Owners, left: list[tuple[str, Place, int]]) -> None:
    """Find the peak: go through the trace for the largest excess over the memory allocated at the end."""
    deltas: list[tuple[int, int, Any]] = []
    live: dict[int, tuple[int, Any]] = {}
    level = most = 0
    best = -1
    backwards, phase = 0, ""
    of_backward: dict[int, int] = {}
    released: Counter[tuple[str, Place, int]] = Counter()
    for entry in trace:
        if not isinstance(entry, dict):
            continue
        mine.events += 1
        action, size = entry.get("action"), whole(entry.get("size"), LARGEST) or 0
        address = whole(entry.get("addr"), LARGEST) or 0
        if action == "alloc":
            live[address] = (size, entry)
            level += size
            deltas.append((address, size, entry))
            holder, _ = owners.of(_frames_of(entry))
            backwards += holder == "unknown" != phase
            mine.updates += holder == "optimizer state" != phase
            phase = holder
            of_backward[address] = backwards
        elif action in ("free_requested", "free_completed", "free"):
            # A request and its completion are one release; it also reveals memory allocated before the trace began.
            freed = live.pop(address, (size, None) if action == "free_requested" else None)
            if freed:
                level -= freed[0]
                deltas.append((address, -freed[0], None))
                released[(*owners.of(_frames_of(freed[1] or {})), freed[0])] += 1
        elif action == "oom":
            mine.tried_bytes = size
            mine.device_free_bytes = whole(entry.get("device_free"), LARGEST)
            mine.tried_for = owners.of(_frames_of(entry))
        if level > most:
            best, most = len(deltas), level
    mine.peak_bytes = mine.allocated_bytes - level + most
    lasting = [((*owners.of(_frames_of(e)), size), of_backward[at]) for at, (size, e) in live.items()]
    mine.kept = _kept(lasting, released)
    if best < 0:
        mine.held_at_peak = _sum_up(left)
        return
    mine.held_at_peak = _held_after(deltas[:best], live, owners, left)


def _held_after(
    deltas: list[tuple[int, int, Any]],
    live: dict[int, tuple[int, Any]],
    owners: _Owners,
    left: list[tuple[str, Place, int]],
) -> Holders:
    """The memory held after some allocations and releases of a trace, including memory from before the trace."""
    at_peak: dict[int, tuple[int, Any]] = {}
    for address, size, entry in deltas:
        if size >= 0:
            at_peak[address] = (size, entry)
        else:
            at_peak.pop(address, None)
    known = [(*owners.of(_frames_of(entry)), size) for size, entry in at_peak.values()]
    parameters = {size for holder, _, size in [*left, *known] if holder in _PARAMETERS}
    # While a trace is recorded, only autograd's threads allocate without a Python frame.
    backward = {True: ("gradients", _NOWHERE), False: ("backward", _NOWHERE)}
    known = [
        ((*backward[size in parameters], size) if one[0] == "unknown" else one) for one in known for size in one[2:]
    ]
    # Memory from before the trace began, if it was still held at the end.
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
    return _sum_up(known)


def _kept(live: list[tuple[tuple[str, Place, int], int]], released: Counter[tuple[str, Place, int]]) -> Holders:
    """The held memory that every step leaves one piece of, given (holder, place, bytes) and the number of earlier
    backwards.

    A pipeline also holds a few micro-batches with a backward between them, but has released earlier ones.
    """
    steps = gathered((key, backwards) for key, backwards in live if key[0] != "unknown" and key[1] != _NOWHERE)
    found = []
    for (holder, place, size), at in steps.items():
        apart = {after - before for before, after in pairwise(sorted(at))}
        mostly_kept = len(at) >= _FEWEST_KEPT and 2 * released[holder, place, size] <= len(at)
        if mostly_kept and len(apart) == 1 and 0 not in apart:
            found.append((holder, place, size * len(at), len(at)))
    return sorted(found, key=lambda each: -each[2])[:_MOST_HOLDERS]


class _Owners:
    """Finds the holder and place of a stack of frames; cached, because stacks repeat by the thousand."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[str, Place]] = {}
        self._of_frame: dict[int, tuple[str, Place | None]] = {}

    def of(self, frames: list[Any]) -> tuple[str, Place]:
        """Return what a block of GPU memory holds, such as parameters, and the user's line behind it.

        `frames` is the stack of its allocation, innermost first. Without frames, the holder is `unknown`; without a
        user frame, the line is empty. Results are cached by identity, so frames must stay alive.
        """
        key = tuple(map(id, frames[:_MOST_FRAMES]))
        if key not in self._known:
            read = [self._frame(frame) for frame in frames[:_MOST_FRAMES] if isinstance(frame, dict)]
            place = next((place for _, place in read if place), _NOWHERE)
            names = [name for name, _ in read]
            holder = "unknown" if not read else _holder(names)
            self._known[key] = holder, place
        return self._known[key]

    def _frame(self, frame: dict[str, Any]) -> tuple[str, Place | None]:
        if id(frame) not in self._of_frame:
            file, function = str(frame.get("filename"))[:500], str(frame.get("name"))[:200]
            line = whole(frame.get("line"), LARGEST) or 0
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
    return [*named, ("other", _NOWHERE, rest, more)] if rest else named


def _frames_of(block: Any) -> list[Any]:
    if not isinstance(block, dict):
        return []
    frames = block.get("frames")
    if frames is None:  # up to torch 2.0
        history = block.get("history")
        first = history[0] if isinstance(history, list) and history else None
        frames = first.get("frames") if isinstance(first, dict) else None
    return frames if isinstance(frames, list) else []
