"""Which texts lie beside the logs, and rows of what their readers see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import PurePosixPath

from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.probes.notes.texts.programs import code_in_note, program_lines, read_program
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
"""Of one text."""
_LONGEST_LINE = 500
_READ_APART = {TextKind.RAS, TextKind.STACKS}


def keep_texts(raw: Raw, host: Host, target: Sequence[str]) -> None:
    """Add the short texts that tell something, and the beginning of longer ones.

    Of what by its name a person wrote, the code alone; and not what readers of its own kind take.
    """
    taken = intake_of(host, [item for item in target if not item.isdigit()])
    texts = [text for text in taken.materials if text.head and not text.kinds & _READ_APART]
    for text in texts[:_MOST_TEXTS]:
        item = RawItem("text", text.head[:_MOST_BYTES], text.source, {"path": text.path})
        if _said(item):
            raw.items.append(item)
    if raw.items and raw.status is ProbeStatus.NO_DATA:
        raw.status = ProbeStatus.OK


def _said(item: RawItem) -> list[TextFact]:
    path = item.facts["path"]
    return _said_in_note(item.data) if is_named_note(path) else _said_in(PurePosixPath(path).name, item.data)


@lru_cache(_MOST_TEXTS)
def _said_in(name: str, data: bytes) -> list[TextFact]:
    """What the readers see in a text; what was captured is parsed at once as a rule."""
    text = data.decode("utf-8", "replace")
    program = program_lines(name, text)
    lines = Lines(line[:_LONGEST_LINE] for line in (text.splitlines() if program is None else program))
    found = read_program(lines) if program is not None else chain(read_values(lines), read_traces(lines))
    return list(islice(found, _MOST_ROWS))


_NOT_OF_EXCERPTS = "program.no_main_guard"
"""What only a whole module can lack."""


@lru_cache(_MOST_TEXTS)
def _said_in_note(data: bytes) -> list[TextFact]:
    """What the code tells that somebody pasted into a note."""
    code = code_in_note(data.decode("utf-8", "replace"))
    if code is None:
        return []
    found = read_program(Lines(line[:_LONGEST_LINE] for line in code))
    return [one for one in islice(found, _MOST_ROWS) if one.code != _NOT_OF_EXCERPTS]


def text_rows(raw: Raw) -> Rows:
    """Rows of `text_facts`."""
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
        for one in _said(item)
    ]
    return {"text_facts": rows}
