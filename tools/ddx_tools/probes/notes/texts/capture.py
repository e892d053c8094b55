"""Captures the texts beside the logs, and turns what their readers find into rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import PurePosixPath

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.files.log_text import without_colours
from ddx_tools.probes.notes.texts.programs import read_as_program, read_program
from ddx_tools.probes.notes.texts.text_fact import Lines, TextFact
from ddx_tools.probes.notes.texts.traces import read_traces
from ddx_tools.probes.notes.texts.values import read_values
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import TextKind, is_named_note
from ddx_tools.sources.raw import Raw, RawItem, Rows

_MOST_BYTES = 64 << 10
_MOST_TEXTS = 64
_MOST_ROWS = 400
"""The maximum number of rows from one text."""
_LONGEST_LINE = 500
_READ_APART = {TextKind.RAS, TextKind.INSPECTOR, TextKind.STACKS, TextKind.NOTE}


def keep_texts(raw: Raw, host: Host, target: Sequence[str]) -> None:
    """Add the short texts that a reader finds facts in, and the beginning of longer ones.

    Leaves out notes, and files that another reader handles.
    """
    taken = intake_of(host, [item for item in target if not item.isdigit()])
    texts = [text for text in taken.materials if text.head and not text.kinds & _READ_APART]
    for text in texts[:_MOST_TEXTS]:
        data = text.head[:_MOST_BYTES]
        if not is_named_note(text.path) and _said_in(PurePosixPath(text.path).name, data):
            raw.items.append(RawItem("text", data, text.source, {"path": text.path}))
    if raw.items and raw.status is ProbeStatus.NO_DATA:
        raw.status = ProbeStatus.OK


@lru_cache(_MOST_TEXTS)
def _said_in(name: str, data: bytes) -> list[TextFact]:
    """The facts that the readers find in a text; cached, because parsing usually follows right after capture."""
    text = without_colours(data).decode("utf-8", "replace")
    if program := read_as_program(name, text):
        return list(islice(read_program(program), _MOST_ROWS))
    lines = Lines(line[:_LONGEST_LINE] for line in text.splitlines())
    return list(islice(chain(read_values(lines), read_traces(lines)), _MOST_ROWS))


def text_rows(raw: Raw) -> Rows:
    """Return the rows of `text_facts`, one per fact found in a text."""
    rows = [
        as_row(
            "text_facts",
            one,
            ranks=json.dumps(list(one.ranks)),
            attributes=json.dumps(one.attributes),
            source=item.source,
            source_line=one.line,
        )
        for item in raw.of("text")
        for one in _said_in(PurePosixPath(item.facts["path"]).name, item.data)
    ]
    return {"text_facts": rows}
