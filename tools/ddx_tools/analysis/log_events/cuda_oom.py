"""Parses the text of a CUDA out-of-memory error into byte counts.

Source: torch's c10/cuda/CUDACachingAllocator.cpp, with these wordings:

    2.2 and later  CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which
                   1.20 GiB is free. Process 4711 has 3.00 GiB memory in use. Including non-PyTorch memory, this process
                   has 77.90 GiB memory in use. 40.00 GiB allowed; Of the allocated memory 70.00 GiB is allocated by
                   PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 5.00 GiB is reserved by
                   PyTorch but unallocated. …
    2.1            the same with "capacty"
    to 2.0         CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.00 GiB already
                   allocated; 1.00 GiB free; 40.00 GiB allowed; 75.00 GiB reserved in total by PyTorch) …

A job's log may break the text at any space. Numbers that it does not contain are left out.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ddx_tools.model.quantities import size_bytes

_TEXT_LIMIT = 4_000
_TOO_MUCH = 1 << 60
_SHARE = 20
_SMALL = 6
_LARGE = 8
_SIZE = r"(\d{1,15}(?:\.\d{1,4})? ?(?:bytes|[KMGT]i?B))"
_START = re.compile(r"(?:CUDA|HIP|XPU)\s+out\s+of\s+memory\.")
_PARTS = {
    name: re.compile(expression)
    for name, expression in {
        "tried_bytes": rf"Tried to allocate {_SIZE}",
        "total_bytes": rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capacity)",
        "free_bytes": rf"(?:of which {_SIZE} is free|{_SIZE} free\b)",
        "process_bytes": rf"this process has {_SIZE} memory in use",
        "allowed_bytes": rf"{_SIZE} allowed\b",
        "allocated_bytes": rf"(?:{_SIZE} is allocated by PyTorch|{_SIZE} already allocated)",
        "private_pools_bytes": rf"{_SIZE} allocated in private pools",
        "reserved_unallocated_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
        "reserved_bytes": rf"{_SIZE} reserved in total by PyTorch",
    }.items()
}
_DEVICE = re.compile(r"\bGPU (\d{1,4})(?= has a total|;)")
_OTHERS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_REFUSED = re.compile(r"preemptively rejected because it would exceed per_process_memory_fraction")
_REQUESTED = re.compile(rf"Requested size: {_SIZE}")


def parse_cuda_oom(text: str) -> dict[str, Any] | None:
    """Parse an error text into the attributes of `memory.cuda_oom`, sizes in bytes; None if it reports no such error.

    `fragmented`: the allocator's reserved but unused memory would have been enough for the request, and is at least a
    twentieth of what it holds; None if the text lacks these numbers. `unused_is_small`: it is less than a sixth of what
    the allocator holds; left out otherwise. `other_processes_bytes`: set if other processes left too little;
    `other_processes`: how many they are. `devices`: the GPU number as the process counts.
    """
    start = _START.search(text)
    if start is None:
        return None
    message = " ".join(text[start.start() : start.start() + _TEXT_LIMIT].split())
    found = {name: _first_size(expression, message) for name, expression in _PARTS.items()}
    found["tried_bytes"] = found["tried_bytes"] or _first_size(_REQUESTED, message)
    unused = found["reserved_unallocated_bytes"]
    reserved, allocated = found.pop("reserved_bytes"), found["allocated_bytes"]
    if unused is None and reserved is not None and allocated is not None:
        unused = found["reserved_unallocated_bytes"] = max(reserved - allocated, 0)
    others = [size for match in _OTHERS.finditer(message) if (size := size_bytes(match[1])) is not None]
    if found["process_bytes"] is None and others and max(others) >= (allocated or 0) + (unused or 0):
        # In a container with its own process ids, torch does not recognise its own process in the list.
        found["process_bytes"] = max(others)
        others.remove(max(others))
    if (found["free_bytes"] or 0) >= (found["tried_bytes"] or math.inf):
        others = []  # the GPU had room: this process reached its own limit
    facts: dict[str, Any] = {
        **found,
        "devices": [match[1]] if (match := _DEVICE.search(message)) else None,
        "other_processes_bytes": sum(others) if others else None,
        "other_processes": len(others) or None,
        "fragmented": _is_fragmented(unused, found["tried_bytes"], allocated),
        "tried_is_large": _is_large(found["tried_bytes"], found["total_bytes"]),
        "unused_is_small": _is_small(unused, allocated) or None,
        "own_limit": True if _REFUSED.search(message) else None,
    }
    # torch 2.1 prints negative numbers as if they had no sign.
    return {name: value for name, value in facts.items() if value is not None and not _is_absurd(value)}


def _first_size(expression: re.Pattern[str], message: str) -> int | None:
    match = expression.search(message)
    return size_bytes(next(group for group in match.groups() if group is not None)) if match else None


def _is_absurd(value: Any) -> bool:
    return isinstance(value, int) and value >= _TOO_MUCH


def _is_small(unused: int | None, allocated: int | None) -> bool:
    """Whether so little is unused that a nearly full GPU also explains the failure."""
    return unused is not None and bool(allocated) and unused * _SMALL < unused + (allocated or 0)


def _is_large(tried: int | None, total: int | None) -> bool | None:
    """Whether the request was at least an eighth of the GPU's memory; None if unknown."""
    return tried * _LARGE >= total if tried and total else None


def _is_fragmented(unused: int | None, tried: int | None, allocated: int | None) -> bool | None:
    if unused is None or not tried or allocated is None:
        return None
    return unused >= tried and unused * _SHARE >= unused + allocated
