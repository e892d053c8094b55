"""The words that name one thing to look at: the same in `ddx show`, in the MCP tool and in the source of evidence.

ranks                      all ranks, folded
rank 77                    one rank: state, ends, stack, last collectives, last lines
group mesh_dp              one process group
collective mesh_dp 350     what all ranks recorded under one number of a group
record PATH#15             one flight record
material rank3.log:41      the lines around a place of a file
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ddx_tools.errors import UsageError

_HELP = "Name one of: ranks; rank 77; group mesh_dp; collective mesh_dp 350; record PATH#15; material rank3.log:41"
_PLACE = re.compile(r"(?P<path>.+?)(?::(?P<line>[0-9]{1,12}))?", re.S)
_RECORD = re.compile(r"(?P<path>.+)#(?:record_id=)?(?P<record>[0-9]{1,18})", re.S)
_NUMBER = re.compile(r"[0-9]{1,9}")


class Thing(StrEnum):
    """What can be looked at."""

    RANKS = "ranks"
    RANK = "rank"
    GROUP = "group"
    COLLECTIVE = "collective"
    RECORD = "record"
    MATERIAL = "material"


@dataclass(frozen=True)
class Words:
    """One thing to look at."""

    thing: Thing
    name: str = ""
    """Of a group its description, name or key; of a record and a material the path."""
    number: int | None = None
    """The rank, the sequence number, the record's id or the line (1-based)."""


def parse_words(words: Sequence[str]) -> Words:
    """What some words name; a path alone is a material. Raises UsageError for words that name nothing."""
    said = " ".join(words).strip()
    first, _, rest = said.partition(" ")
    rest = rest.strip()
    if said == Thing.RANKS:
        return Words(Thing.RANKS)
    if first == Thing.RANK and _NUMBER.fullmatch(rest):
        return Words(Thing.RANK, number=int(rest))
    if first == Thing.GROUP and rest:
        return Words(Thing.GROUP, rest)
    if first == Thing.COLLECTIVE:
        name, _, number = rest.rpartition(" ")
        if name and _NUMBER.fullmatch(number):
            return Words(Thing.COLLECTIVE, name.strip(), int(number))
    if first == Thing.RECORD and (record := _RECORD.fullmatch(rest)):
        return Words(Thing.RECORD, record["path"], int(record["record"]))
    path = rest if first == Thing.MATERIAL else said if first not in set(Thing) else ""
    if found := _PLACE.fullmatch(path):
        return Words(Thing.MATERIAL, found["path"], int(found["line"]) if found["line"] else None)
    raise UsageError(f"{said[:200]!r} names nothing to look at" if said else "nothing was named", _HELP)
