"""Parsing of sizes written in texts."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(bytes|[KMGTP]i?B|[kKMGT]|B)?$")
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def size_bytes(text: str) -> int | None:
    """Parse "5.50 GiB", "512.00 MiB", "67108864", "1048576 bytes" or "64M" to bytes; None for anything else.

    torch (c10/cuda/CUDACachingAllocator.cpp, format_size) and df print powers of 1024 with two decimals. Programs that
    print "GB" nearly always count in powers of 1024 as well, so "GB" is read that way.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        return None
    factor = 1 << 10 * _UNITS.get((match[2] or "").upper()[:1], 0)
    return round(float(match[1]) * factor)
