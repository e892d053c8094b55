"""Files with texts of machines: told by their content, all others left alone; and the rows of what they say."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.file_suffixes import NO_TEXT, suffix
from ddx_tools.formats.names import shown
from ddx_tools.hosts.base import Host
from ddx_tools.machine.texts import fact_rows, goes_on, may_say_something
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows

TEXT = "host_text"
_HEAD_BYTES = 64 << 10
"""The beginning of a file tells whether it is a text of a machine: job logs lie beside, gigabytes of them."""
_PART_BYTES = 8 << 20
_ALL_BYTES = 64 << 20
"""Of all long texts together; of those that come later, only the beginnings are read."""
_FILES_LIMIT = 2_000
_WHY = "What it says of the machine is not known."


def read_files(host: Host, paths: Sequence[str]) -> Raw:
    """Keep the files that hold a text of a machine."""
    raw = Raw(host.name)
    files = list(dict.fromkeys(file for path in paths for file in host.files_below(path)))
    files = [file for file in files if file in paths or suffix(file) not in NO_TEXT]
    if len(files) > _FILES_LIMIT:
        raw.problems.append(f"{len(files)} files: only the first {_FILES_LIMIT} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    for file in files[:_FILES_LIMIT]:
        _read(host, raw, file, named=file in paths)
    raw.searched.append(f"{len(files)} files: {len(raw.of(TEXT))} texts of machines")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _read(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    try:
        reply = host.read(path, max_bytes=_HEAD_BYTES)
        if b"\0" in reply.data[:1024] and not reply.data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return
        if not may_say_something(reply.data):
            return
        parts = [("head" if reply.truncated else "whole", reply)]
        if reply.truncated and not goes_on(reply.data):
            return
        read_so_far = sum(len(item.data) for item in raw.items)
        if reply.truncated and read_so_far < _ALL_BYTES:
            whole = host.read(path, max_bytes=_PART_BYTES)
            parts = [("head" if whole.truncated else "whole", whole)]
            if whole.truncated:
                parts.append(("tail", host.read(path, max_bytes=_PART_BYTES, tail=True)))
                raw.problems.append(f"{shown(path)}: only its first and last {_PART_BYTES >> 20} MiB were read.")
        elif reply.truncated:
            raw.problems.append(
                f"{shown(path)}: only its first {_HEAD_BYTES >> 10} KiB were read; name it alone for more."
            )
    except NotFound:
        if named:
            raw.problems.append(f"{shown(path)}: no such file.")
        return
    except HostError as error:
        raw.failed(shown(path), error, _WHY)
        return
    for part, kept in parts:
        source = kept.source or path
        # A long text with the marks of one is not read twice to find out that it says nothing.
        if len(parts) > 1 or fact_rows(kept.data, source, path):
            raw.items.append(RawItem(TEXT, kept.data, source, {"path": path, "part": part}))


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
