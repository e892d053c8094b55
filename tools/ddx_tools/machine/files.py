"""Files with texts of machines: told by their content, all others left alone; and the rows of what they say."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.errors import HostError
from ddx_tools.machine.texts import fact_rows, goes_on
from ddx_tools.model import ProbeStatus
from ddx_tools.parsers.names import shown
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows
from ddx_tools.sources.hosts.base import Host
from ddx_tools.sources.intake import Intake, intake_of
from ddx_tools.sources.kinds import Kind
from ddx_tools.sources.material import Material

TEXT = "host_text"
_HEAD_BYTES = 64 << 10
"""The beginning of a long file tells whether it is a text of a machine: job logs lie beside, gigabytes of them."""
_PART_BYTES = 8 << 20
_ALL_BYTES = 64 << 20
"""Of all long texts together; of those that come later, only the beginnings are read."""
_WHY = "What it says of the machine is not known."


def read_files(host: Host, paths: Sequence[str]) -> Raw:
    """Keep the files that hold a text of a machine."""
    raw = Raw(host.name)
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    left = _ALL_BYTES
    for material in taken.of(Kind.MACHINE):
        try:
            left -= _take(raw, taken, material, left)
        except HostError as error:
            raw.failed(shown(material.path), error, _WHY)
    raw.searched.append(f"{len(taken.materials)} files: {len(raw.of(TEXT))} texts of machines")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _take(raw: Raw, taken: Intake, text: Material, left: int) -> int:
    """Keep a file, if it has to say something; returns how many bytes of it. Raises HostError."""
    head, tail = text.head, b""
    if text.cut or len(head) > _HEAD_BYTES:
        if not goes_on(head[:_HEAD_BYTES]):
            return 0
        if left <= 0:
            head = head[:_HEAD_BYTES]
            problem = f"only its first {_HEAD_BYTES >> 10} KiB were read; name it alone for more."
            raw.problems.append(f"{shown(text.path)}: {problem}")
        elif text.cut and (head := taken.beginning(text, 2 * _PART_BYTES)) and len(head) == 2 * _PART_BYTES:
            head, tail = head[:_PART_BYTES], taken.end(text, _PART_BYTES)
            raw.problems.append(f"{shown(text.path)}: only its first and last {_PART_BYTES >> 20} MiB were read.")
    for part, data in (("head", head), ("tail", tail)):
        # A long text with the marks of one is not read twice to find out that it says nothing.
        if data and (tail or fact_rows(data, text.source, text.name)):
            raw.items.append(RawItem(TEXT, data, text.source, {"path": text.name, "part": part}))
    return len(head) + len(tail) if len(head) > _HEAD_BYTES else 0


def text_rows(raw: Raw) -> Rows:
    """Rows of `host_facts`. What neither the text nor the file's name says of the host stays NULL."""
    parts = []
    for item in raw.of(TEXT):
        rows = fact_rows(item.data, item.source, item.facts["path"])
        for row in rows:
            row["host"] = row["host"] or raw.known_host
            # A tail's lines are counted from where it begins: the file's own numbers are not known.
            row["source_line"] = None if item.facts["part"] == "tail" else row["source_line"]
        parts.append({"host_facts": rows})
    return merge_rows(parts)
