"""Reads the JSON lines of NCCL Inspector, a profiler plugin that records the operations a process finished.

    {"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{…,"dump_timestamp_us":1748030377748202,
     "hostname":"node1","pid":4242},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_exec_time_us":61974,…}}

Sources: plugins/profiler/inspector of NCCL 2.30.7 (inspector_json.cc, json.cc, inspector_ring.cc), and
ext-profiler/inspector of 2.28.3; inspector_output_format_version is v4.0 in both. A process writes the file
`<host>-pid<pid>.log`, with one line per operation:

- `id` is the communicator's hash without its last two digits, for which the plugin's buffer is too short.
- `coll_sn` is counted per communicator and operation, from 0 (src/plugin/profiler.cc).
- Only finished operations are written, so a file does not grow in a hang, and nothing says when it was copied.
- Operations below 8 KiB, or without times from the GPU, are left out. 2.28 and 2.29 write only the last operation of
  each interval and communicator; 2.30, whose header has `comm_name`, all of them, unless there are more than 1,024.
- `dump_timestamp_us` is the time of writing. What finished after the last writing is lost when a communicator ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ddx_tools.parsers.plain_json import LARGEST, read_object, whole

INSPECTOR = "inspector"
"""The kind of raw material for a file of NCCL Inspector."""
_MOST_RANKS = 1 << 20
_MOST_ROWS = 4_096
_MOST_LINES = 200_000
_LONGEST_LINE = 1 << 20
_LONGEST_NAME = 100
_LONGEST_QUOTE = 400
_BEGINS = re.compile(rb'\s{0,64}\{\s{0,16}"header"\s{0,16}:\s{0,16}\{\s{0,16}"id"\s{0,16}:\s{0,16}"0x[0-9a-f]{1,16}"')
_HASH = re.compile(r"0x[0-9a-f]{1,16}")


def recognises(_: str, data: bytes) -> bool:
    """Return whether a text begins like a file of NCCL Inspector."""
    return _BEGINS.match(data) is not None


@dataclass
class FinishedOperations:
    """What one process finished of one operation in one communicator."""

    communicator: str
    nranks: int
    rank: int
    """The rank within the communicator."""
    host: str
    pid: int
    operation: str
    last_sn: int
    is_last: bool
    """Whether the communicator's last line is about this operation."""
    writes_all: bool
    """Whether this version writes every operation, and not only the last one of each interval."""
    last_s: float
    """When that last line was written, in seconds since the epoch on the clock of its host."""
    longest_gap_s: float | None
    """The longest time between two lines of the communicator; None if there are fewer than three."""
    ends_s: float
    """When the last line of the file was written, of any communicator."""
    source_line: int | None
    quote: str
    """The part of the last line about the operation that says what was finished."""


@dataclass
class _Line:
    communicator: str
    nranks: int
    rank: int
    host: str
    pid: int
    written_s: float
    operation: str | None
    """None for a send or a receive."""
    number: int
    writes_all: bool


def inspector_rows(data: bytes, source: str, *, whole_file: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the table `nccl_finished`; none for any other bytes.

    `whole_file`: whether `data` is the whole file; otherwise it is the end, and its lines have no numbers.
    """
    rows = [{**asdict(row), "source": source} for row in _finished(data, whole_file)]
    return {"nccl_finished": rows}


def _finished(data: bytes, whole_file: bool) -> list[FinishedOperations]:
    found: dict[tuple[str, int, str], FinishedOperations] = {}
    stamps: dict[tuple[str, int], tuple[int, float, float]] = {}  # lines, the last one's time, the longest gap
    latest: dict[tuple[str, int], tuple[str, int, str]] = {}
    ends_s = 0.0
    for at, text, line in _lines(data):
        ends_s = max(ends_s, line.written_s)
        if line.operation is None:
            continue
        member = line.communicator, line.rank
        count, before_s, gap_s = stamps.get(member, (0, line.written_s, 0.0))
        stamps[member] = count + 1, line.written_s, max(gap_s, line.written_s - before_s)
        key = (*member, line.operation)
        if key in found:
            found[key].last_sn = max(found[key].last_sn, line.number)
        elif len(found) < _MOST_ROWS:
            found[key] = _first(line, line.operation)
        else:
            continue
        latest[member] = key
        found[key].source_line = at if whole_file else None
        telling = text[max(0, text.find(b'"coll_perf"')) :]
        found[key].quote = telling[:_LONGEST_QUOTE].decode("utf-8", "replace")
    for key, row in found.items():
        count, row.last_s, gap_s = stamps[key[:2]]
        row.longest_gap_s = gap_s if count > 2 else None
        row.is_last, row.ends_s = latest[key[:2]] == key, ends_s
    return list(found.values())


def _first(line: _Line, operation: str) -> FinishedOperations:
    return FinishedOperations(
        communicator=line.communicator,
        nranks=line.nranks,
        rank=line.rank,
        host=line.host,
        pid=line.pid,
        operation=operation,
        last_sn=line.number,
        is_last=False,
        writes_all=line.writes_all,
        last_s=line.written_s,
        longest_gap_s=None,
        ends_s=0.0,
        source_line=None,
        quote="",
    )


def _lines(data: bytes) -> Iterator[tuple[int, bytes, _Line]]:
    """Yield the lines about finished operations, with their numbers from 1."""
    for at, text in enumerate(data.split(b"\n", _MOST_LINES)[:_MOST_LINES], 1):
        if len(text) <= _LONGEST_LINE and text.lstrip()[:1] == b"{" and (line := _line(read_object(text))):
            yield at, text.strip(), line


def _line(root: dict[str, Any]) -> _Line | None:
    header, metadata = _object(root, "header"), _object(root, "metadata")
    performed = _object(root, "coll_perf")
    nranks = whole(header.get("n_ranks"), _MOST_RANKS, 1)
    rank = whole(header.get("rank"), _MOST_RANKS)
    pid = whole(metadata.get("pid"))
    written_us = whole(metadata.get("dump_timestamp_us"), LARGEST, 1)
    number = whole(performed.get("coll_sn"), LARGEST) if performed else 0
    name, host = header.get("id"), metadata.get("hostname")
    operation = performed.get("coll")
    if nranks is None or rank is None or rank >= nranks or pid is None or written_us is None or number is None:
        return None
    if not isinstance(name, str) or not _HASH.fullmatch(name) or not isinstance(host, str):
        return None
    if performed and not isinstance(operation, str):
        return None
    operation = operation[:_LONGEST_NAME] if performed and isinstance(operation, str) else None
    return _Line(
        communicator=name[2:],
        nranks=nranks,
        rank=rank,
        host=host[:_LONGEST_NAME],
        pid=pid,
        written_s=written_us / 1e6,
        operation=operation,
        number=number,
        writes_all="comm_name" in header,
    )


def _object(root: dict[str, Any], name: str) -> dict[str, Any]:
    found = root.get(name)
    return found if isinstance(found, dict) else {}
