"""Sizes as texts write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(bytes|[KMGTP]i?B|[kKMGT]|B)?$")
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def size_bytes(text: str) -> int | None:
    """Bytes of "5.50 GiB", "512.00 MiB", "67108864", "1048576 bytes" or "64M"; None for anything else.

    torch (c10/cuda/CUDACachingAllocator.cpp, format_size) prints powers of 1024 with two decimals; so df does. What
    prints "GB" nearly always counts in powers of 1024 as well, and is read so.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        return None
    factor = 1 << 10 * _UNITS.get((match[2] or "").upper()[:1], 0)
    return round(float(match[1]) * factor)
