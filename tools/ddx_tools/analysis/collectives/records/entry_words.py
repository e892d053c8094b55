"""A recorded operation as one line, as evidence quotes it and `ddx show` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddx_tools.model.diagnosis import Location

_LONGEST = 400


def entry_words(entry: Mapping[str, Any]) -> str:
    """The line for one entry: `rank 0 seq 27 all_reduce [[85514]] ["Float"] at train.py:37 train_step, not finished`.

    `entry` has the columns of the view `collectives`.
    """
    named = "input" if entry["input_sizes"] not in (None, "[]") else "output"
    sizes, dtypes = entry[f"{named}_sizes"] or "", entry[f"{named}_dtypes"] or ""
    words = f"rank {entry['rank']} seq {entry['seq']} {entry['op']} {sizes} {dtypes}".rstrip()
    if entry["user_file"] is not None:
        place = Location(file=entry["user_file"], line=entry["user_line"], function=entry["user_function"])
        words += f" at {place.short()}"
    return (words + ("" if entry["done"] else ", not finished"))[:_LONGEST]
