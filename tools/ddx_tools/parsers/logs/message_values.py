"""What a known message says, as values: numbers as numbers, sizes in bytes, lists as lists."""

from __future__ import annotations

import re
from typing import Any

from ddx_tools.parsers.logs.signatures import Signature

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(bytes|[KMGTP]i?B|[kKMGT]|B)?$")
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})$")
_DECIMAL = re.compile(r"-?\d{1,15}\.\d{1,9}$")
_LIST_LIMIT = 64


def message_values(known: Signature, groups: dict[str, str]) -> dict[str, Any]:
    """The attributes that a match of a signature gives its findings: its constants, and its groups by their names.

    Texts of `values` become what they stand for, `*_bytes` are sizes ("5.50 GiB" is 5,905,580,032), `lists` are split
    at commas and blanks, digits are numbers unless they are `texts`; anything else stays text. What cannot be read is
    left out.
    """
    values: dict[str, Any] = dict(known.attributes)
    for name, text in groups.items():
        number = str if name in known.texts else _number
        if name in known.values:
            values[name] = known.values[name].get(text.strip())
        elif name in known.lists:
            items = [item.strip("'\"") for item in re.split(r"[,\s]+", text)]
            values[name] = list(dict.fromkeys(number(item) for item in items if item))[:_LIST_LIMIT]
        elif name.endswith("_bytes"):
            values[name] = size_bytes(text)
        else:
            values[name] = number(text.strip())
    return {name: value for name, value in values.items() if value not in (None, "", [])}


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


def _number(text: str) -> int | float | str:
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _DECIMAL.match(text) else text
