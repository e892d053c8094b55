"""Entries of flight records that somebody printed: a dict a line, with the rank in the line above or the file's name.

    ===== /tmp/nccl_trace_rank_2  entries[-2:]
    {'collective_seq_id': 8, 'input_dtypes': ['Float'], 'input_sizes': [[1024]], 'process_group': ('0', 'default_pg'),
     'profiling_name': 'nccl:all_reduce', 'state': 'started', ...}

(In one line each; keys as FlightRecorder.cpp dumps them, torch 2.3 to 2.15, printed by Python or as JSON.) Such lines
are often shortened with dots, so they are searched and not evaluated. Whole records are read by `flight_recorder`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ddx_tools.analysis.collectives.party import Call, Job, Member, Party
from ddx_tools.analysis.collectives.raising import Aspect
from ddx_tools.logs.event import Event
from ddx_tools.parsers.flight_records.fr_origin import rank_of_name

_ENTRY, _HEAD = "torch_printed_entry", "torch_trace_file"
_NEAR = 100
"""Lines between the line that names the rank and an entry below it."""
_FIELDS = {
    "seq": re.compile(r"""['"]collective_seq_id['"]: (\d{1,18})"""),
    "group": re.compile(r"""['"]process_group['"]: [\[(]['"]([^'"]{0,120})['"]"""),
    "operation": re.compile(r"""['"]profiling_name['"]: ['"]\w{1,20}:(?:[^'"]{0,80} )?(\w{1,60})['"]"""),
    "state": re.compile(r"""['"]state['"]: ['"](\w{1,20})['"]"""),
    "dtype": re.compile(r"""['"]input_dtypes['"]: (\[['"\w, ]{0,200}\])"""),
    "shape": re.compile(r"""['"]input_sizes['"]: (\[[\[\]\d, ]{0,300}\])"""),
}
# Ranks may give different sizes to these.
_RAGGED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier")


@dataclass(frozen=True)
class _Entry:
    event: Event
    rank: int
    told: dict[str, str]


def printed_parties(events: Iterable[Event]) -> list[Party]:
    """What ranks were in at numbers that did not complete."""
    by_number: dict[tuple[int, str, str], dict[int, _Entry]] = defaultdict(dict)
    for entry in _entries(events):
        if {"seq", "group", "operation"} <= entry.told.keys():
            by_number[entry.event.attempt, entry.told["group"], entry.told["seq"]][entry.rank] = entry
    return [
        Party(
            "log",
            {rank: Member(rank, _call(entry, int(seq))) for rank, entry in sorted(entries.items())},
            Job(frozenset()),
            label=group,
            named=True,
            attempts=[attempt] if attempt else [],
        )
        for (attempt, group, seq), entries in sorted(by_number.items())
        # What all completed is no reason to wait; a difference there is left to the whole records.
        if any(entry.told.get("state") != "completed" for entry in entries.values())
    ]


def _call(entry: _Entry, seq: int) -> Call:
    ragged = entry.told["operation"].strip("_").startswith(_RAGGED)
    aspects: tuple[Aspect, ...] = ("operation", "dtype") if ragged else ("operation", "shape", "dtype")
    return Call({aspect: entry.told[aspect] for aspect in aspects if aspect in entry.told}, entry.event.evidence, seq)


def _entries(events: Iterable[Event]) -> Iterable[_Entry]:
    head: Event | None = None
    for event in events:
        code = event.row["code"]
        if code == _HEAD:
            head = event
        elif code == _ENTRY:
            rank = _rank(event, head)
            text = str(event.row["text"] or "")
            if rank is not None:
                told = {name: match[1] for name, field in _FIELDS.items() if (match := field.search(text))}
                yield _Entry(event, rank, told)


def _rank(event: Event, head: Event | None) -> int | None:
    if head and head.row["source"] == event.row["source"]:
        distance = event.row["source_line"] - head.row["source_line"]
        return int(head.details["of_rank"]) if 0 <= distance <= _NEAR else None
    return event.ranks[0] if len(event.ranks) == 1 else rank_of_name(str(event.row["source"] or ""))
