"""Lines of a job's output: decoded, without colours, with what their prefixes say of the rank.

Prefixes come from whoever put them there, and several can stand on one line:

    [rank3]:             torch's excepthook and C++ log (distributed_c10d.py, c10/util/Logging.cpp)
    [default3]:          torchrun --tee: role and *local* rank (elastic/multiprocessing/tail_log.py)
    [Rank 3] [PG ID 0 PG GUID 0(default_pg) Rank 3]   ProcessGroupNCCL.cpp
    [1,3]<stderr>:       mpirun --tag-output: job, rank
    3:                   srun --label: task, which is a rank only if each task is one
    (RayTrainWorker pid=123, ip=10.0.0.1)             Ray
    E1121 10:00:00.123456 4242 path.py:12]            Python's and C++'s glog form: no year, no zone
    2026-11-21T10:00:00.123Z stderr F                 Kubernetes (CRI), and loggers

The text keeps its indentation: a traceback is recognised by it.
"""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LINE_LIMIT = 16_000
"""Characters kept of a line."""
_READ_LIMIT = 64_000
_HEAD_LIMIT = 256_000

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_GLUED_TO_BAR = re.compile(r"(\d{1,3}%\|[^|]{0,200}\| *[\w.?]{1,20}/[\w.?]{1,20} \[[^\]]{0,80}\]) ?(?=\S)")

_RANK = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?", re.I)
_ROLE = re.compile(r"\[(?:default|trainer)(\d{1,4})\]:")
_GROUP_RANK = re.compile(r"\[PG (?:ID )?(\d{1,6})[^\]]{0,160}? ?Rank (\d{1,6})\] {0,2}")
_MPIRUN = re.compile(r"\[\d{1,6},(\d{1,6})\]<std(?:out|err)>: ?")
_RAY = re.compile(r"\((\w{1,60}) pid=(\d{1,8})(?:, ip=[\w.:]{1,60})?\) ?")
_STAMP = re.compile(
    r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:([.,])(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: std(?:out|err) [FP])?(?: |$)"
)
_GLOG = re.compile(r"\[?[IWEF](?:\d{4} \d\d:\d\d:\d\d\.\d{1,9})?(?: +(\d{1,8}))? [\w./-]{1,200}:\d{1,6}\] ?")
_TASK = re.compile(r" {0,5}(\d{1,5}): ?")

_LABELLED = re.compile(rb"^ {0,5}(\d{1,5}): ?", re.M)
_ONE_TASK_MANY_RANKS = re.compile(rb"\[default\d|torch/distributed/elastic|local_rank: \d")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, or one piece of it between carriage returns."""

    number: int
    """1-based; pieces of one line share it."""
    text: str
    """Without prefixes."""
    raw: str
    """The words as they stand in the file, without colours and control characters."""
    stream: str = ""
    """The labels of the line: lines of one process carry the same."""
    rank: int | None = None
    local_rank: int | None = None
    group: str | None = None
    """Process group id as ProcessGroupNCCL prints it."""
    pid: int | None = None
    time_s: float | None = None
    """Seconds since the epoch; a time without zone is read as UTC."""
    is_record: bool = False
    """A logger's header stood before the text: a record of its own, never the continuation of a message."""
    writer: int | None = None
    """Thread id in that header."""


def read_lines(stream: BinaryIO) -> Iterator[LogLine]:
    """The lines of a log, in order. Any bytes will do; memory is bounded by the longest piece kept."""
    head = stream.read(_HEAD_LIMIT)
    labels = _Labels(head)
    source = io.BufferedReader(_Joined(head, stream))
    number, starts_line = 0, True
    while piece := source.readline(_READ_LIMIT):
        number += starts_line
        starts_line = piece.endswith(b"\n")
        for text in _split(piece.decode("utf-8", "replace").rstrip("\n").rstrip("\r")):
            yield _line(number, text, labels)


class _Joined(io.RawIOBase):
    """Bytes already read, and the stream they were read from."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._head.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Labels:
    """Whether `3: ` before every line is a label, and whether the label is a rank.

    A number before a colon says nothing ("12: loss 0.3"); a label stands before nearly all lines and recurs.
    """

    def __init__(self, head: bytes) -> None:
        lines = sum(1 for line in head.splitlines() if line.strip())
        found = [int(number) for number in _LABELLED.findall(head)]
        self.present = len(found) >= 4 and len(found) >= 0.9 * lines and len(found) > 2 * len(set(found))
        self.is_rank = self.present and not _ONE_TASK_MANY_RANKS.search(head)


def _split(text: str) -> Iterator[str]:
    """The pieces that a terminal would show one over the other, and what was glued to a progress bar."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    for piece in text.split("\r") if "\r" in text else (text,):
        if not piece.isprintable():
            piece = _UNPRINTABLE.sub("", piece)
        glued = _GLUED_TO_BAR.search(piece) if "%|" in piece else None
        if glued:
            yield piece[: glued.end(1)][:LINE_LIMIT]
            yield piece[glued.end() :][:LINE_LIMIT]
        else:
            yield piece[:LINE_LIMIT]


def _line(number: int, raw: str, labels: _Labels) -> LogLine:
    first = raw[:1]
    if not labels.present and first not in "[(IWEF2":
        return LogLine(number, raw, raw)
    return _Prefixes(raw, labels).line(number)


class _Prefixes:
    """Reads the prefixes of one line, from left to right."""

    def __init__(self, raw: str, labels: _Labels) -> None:
        self.raw = raw
        self.at = 0
        self.rank: int | None = None
        self.local_rank: int | None = None
        self.group: str | None = None
        self.pid: int | None = None
        self.time_s: float | None = None
        self.is_record = False
        self.writer: int | None = None
        self.stream = ""
        if labels.present and (task := self._take(_TASK)):
            self.stream = f"task{task[1]} "
            self.rank = int(task[1]) if labels.is_rank else None
        while self.at < len(raw) and self._one():
            pass

    def line(self, number: int) -> LogLine:
        text = self.raw[self.at :]
        return LogLine(
            number,
            text,
            self.raw,
            self.stream,
            self.rank,
            self.local_rank,
            self.group,
            self.pid,
            self.time_s,
            self.is_record,
            self.writer,
        )

    def _one(self) -> bool:
        first = self.raw[self.at]
        if first == "[":
            return self._bracket()
        if first == "(" and (ray := self._take(_RAY)):
            self.pid = int(ray[2])
            self.stream += f"pid{ray[2]} "
            return True
        return first in "IWEF2" and (self._log_header() or self._stamp())

    def _bracket(self) -> bool:
        if found := self._take(_RANK) or self._take(_MPIRUN):
            self.rank = int(found[1])
            # The C++ logger repeats the rank behind its header; the stream is what stands before it.
            self.stream += "" if self.is_record else f"rank{found[1]} "
        elif found := self._take(_ROLE):
            self.local_rank = int(found[1])
            self.stream += f"local{found[1]} "
        elif found := self._take(_GROUP_RANK):
            self.group, self.rank = found[1], int(found[2])
            self.is_record = True
        else:
            return self._log_header() or self._stamp()
        return True

    def _log_header(self) -> bool:
        found = self._take(_GLOG)
        if found:
            self.is_record = True
            self.writer = int(found[1]) if found[1] else None
        return bool(found)

    def _stamp(self) -> bool:
        found = self._take(_STAMP)
        if not found:
            return False
        self.time_s = _seconds(found[1], found[2], found[4] or "", found[5] or "Z")
        # Python's logging writes a comma before the milliseconds; stamps of a container stand on every line.
        self.is_record |= found[3] == ","
        return True

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.raw, self.at)
        if found:
            self.at = found.end()
        return found


def _seconds(date: str, time: str, fraction: str, zone: str) -> float | None:
    try:
        moment = dt.datetime.fromisoformat(f"{date}T{time}{zone}")
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


_PER_RANK_FILE = re.compile(r"(?:^|[_.-])rank[_-]?(\d{1,6})(?=[._-]|$)", re.I)
_AGENT_FILE = re.compile(r"rank-(\d{1,6})\.(\d{1,9})\.")
_LOG_DIR_FILE = re.compile(r"(?:^|/)attempt_(\d{1,6})/(\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)$")


@dataclass(frozen=True)
class FileIdentity:
    """What the name of a log file says of its lines."""

    rank: int | None = None
    local_rank: int | None = None
    attempt: int | None = None
    pid: int | None = None


def file_identity(path: str) -> FileIdentity:
    """What a path says: torchrun's `--log-dir` tree, files of the rank agent, `rank3.log` and the like."""
    if found := _LOG_DIR_FILE.search(path):
        return FileIdentity(local_rank=int(found[2]), attempt=int(found[1]))
    name = path.rsplit("/", 1)[-1]
    if found := _AGENT_FILE.match(name):
        return FileIdentity(rank=int(found[1]), pid=int(found[2]))
    found = _PER_RANK_FILE.search(name)
    return FileIdentity(rank=int(found[1])) if found else FileIdentity()


def is_text_log(data: bytes) -> bool:
    """Whether bytes are lines of text: no pickle, no archive, no JSON document, no other binary."""
    head = data[:8192]
    if not head.strip() or head.startswith(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"\x1f\x8b")
    ):
        return False
    if head.lstrip()[:1] in (b"{", b"[") and _is_json(data):
        return False
    text = head.decode("utf-8", "replace")
    odd = sum(1 for c in text if c == "\ufffd" or (not c.isprintable() and c not in "\n\r\t\x1b\x08\f"))
    return odd <= 0.1 * len(text)


def _is_json(data: bytes) -> bool:
    """Cheap: a document closes at its end what it opened at its start, a log does not."""
    start, end = data.lstrip()[:2], data.rstrip()[-1:]
    return (start[:1], end) in ((b"{", b"}"), (b"[", b"]")) and start[1:2] in (
        b'"',
        b"{",
        b"[",
        b"\n",
        b" ",
        b"]",
        b"}",
    )
