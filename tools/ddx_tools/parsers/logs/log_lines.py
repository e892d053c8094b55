"""Lines of a job's output: decoded, without colours, with the facts in their prefixes, such as the rank.

The text keeps its indentation: a traceback is recognised by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from ddx_tools.model.files.log_text import DOCKER, encoding_of
from ddx_tools.parsers.logs.log_prefixes import FIRST_OF_PREFIX, Labels, read_prefix

LINE_LIMIT = 16_000
"""How many characters of a line are kept."""

_GLUED_TO_BAR = re.compile(r"(\d{1,3}%\|[^|]{0,200}\| *[\w.?]{1,20}/[\w.?]{1,20} \[[^\]]{0,80}\]) ?(?=\S)")
_QUOTED = re.compile(r"(?:> ?){1,3}")
# Markdown around a log.
_FENCE = re.compile(r" {0,3}(?:> ?)?(?:`{3,8}[\w+-]{0,30}|</?(?:details|pre|code|summary)(?: [\w=\"' ]{1,40})?>)\s*$")
_NOT_PLAIN = FIRST_OF_PREFIX | set(">`<")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, or one piece of it between carriage returns."""

    number: int
    """The line number, from 1; pieces of one line share it."""
    text: str
    """The text without prefixes."""
    raw: str
    """The text as in the file, without colours and control characters."""
    stream: str = ""
    """The labels of the line: lines of one process have the same."""
    rank: int | None = None
    local_rank: int | None = None
    group: str | None = None
    """The process group id as printed by ProcessGroupNCCL."""
    pid: int | None = None
    time_s: float | None = None
    """The time in seconds since the epoch; a time without a zone is read as UTC."""
    is_record: bool = False
    """Whether a logger's header precedes the text: then it is a record of its own, never a message's continuation."""
    writer: int | None = None
    """The thread id in that header."""
    host: str | None = None
    """The host in a label or a daemon's header."""


def lines_of(number: int, piece: bytes, labels: Labels) -> Iterator[LogLine]:
    """Yield the line in a piece, or two lines if text was glued to a progress bar."""
    raw = piece.decode("utf-8", "replace")
    glued = _GLUED_TO_BAR.search(raw) if "%|" in raw else None
    if glued:
        yield _line(number, raw[: glued.end(1)][:LINE_LIMIT], labels)
        raw = raw[glued.end() :]
    yield _line(number, raw[:LINE_LIMIT], labels)


def _line(number: int, raw: str, labels: Labels) -> LogLine:
    if labels.pattern is None and raw[:1] not in _NOT_PLAIN:
        return LogLine(number, raw, raw)
    if "`" in raw[:8] or "<" in raw[:3]:
        return LogLine(number, "" if _FENCE.match(raw) else raw, raw)
    unquoted = quote.end() if raw[:1] == ">" and (quote := _QUOTED.match(raw)) else 0
    prefix = read_prefix(raw, labels, unquoted)
    return LogLine(number, raw[prefix.end :], raw, *_TOLD(prefix))


_TOLD = attrgetter("stream", "rank", "local_rank", "group", "pid", "time_s", "is_record", "writer", "host")
"""The facts from a prefix, in the field order of a line."""


_PER_RANK_FILE = re.compile(r"(?:^|[_.-])rank[_-]?(\d{1,6})(?=[._-]|$)", re.I)
_AGENT_FILE = re.compile(r"rank-(\d{1,6})\.(\d{1,9})\.")
_LOG_DIR_FILE = re.compile(r"(?:^|/)attempt_(\d{1,6})/(\d{1,6})/(?:stdout\.log|stderr\.log|error\.json)$")


@dataclass(frozen=True)
class FileIdentity:
    """The facts that a log file's name gives about its lines."""

    rank: int | None = None
    local_rank: int | None = None
    attempt: int | None = None
    pid: int | None = None


def file_identity(path: str) -> FileIdentity:
    """Return the facts in a path: torchrun's `--log-dir` tree, files of the rank agent, `rank3.log` and the like."""
    if found := _LOG_DIR_FILE.search(path):
        return FileIdentity(local_rank=int(found[2]), attempt=int(found[1]))
    name = path.rsplit("/", 1)[-1]
    if found := _AGENT_FILE.match(name):
        return FileIdentity(rank=int(found[1]), pid=int(found[2]))
    found = _PER_RANK_FILE.search(name)
    return FileIdentity(rank=int(found[1])) if found else FileIdentity()


def is_text_log(data: bytes) -> bool:
    """Return whether bytes are lines of text, not a pickle, an archive, a JSON document or other binary data."""
    head = data[:8192]
    if not head.strip() or head.startswith(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"\x1f\x8b")
    ):
        return False
    if head.lstrip()[:1] in (b"{", b"[") and not head.startswith(DOCKER) and _is_json(data):
        return False
    # A run of NULs is a hole: in a file truncated while its writer kept its offset, or after a machine crash.
    text = head.decode(encoding_of(head) or "utf-8", "replace").replace("\0", "").lstrip("\ufeff")
    if "".join(text.split()).isprintable() and "\ufffd" not in text:
        return bool(text.strip())
    odd = sum(1 for c in text if c == "\ufffd" or (not c.isprintable() and c not in "\n\r\t\x1b\x08\f"))
    return bool(text.strip()) and odd <= 0.1 * len(text)


_JSON_LINES = re.compile(rb"\s{0,80}\{\"[^\n]{0,65536}\}[ \t\r]{0,8}\n\s{0,80}\{\"")
"""A whole object on the first line, and the start of another on the second: metrics.jsonl, structured logs."""


def _is_json(data: bytes) -> bool:
    """Whether bytes are one JSON document, checked cheaply: a document ends with the closing bracket of its first
    character."""
    if _JSON_LINES.match(data):
        return False
    start, end = data.lstrip()[:2], data.rstrip()[-1:]
    opened_and_closed = (start[:1], end) in ((b"{", b"}"), (b"[", b"]"))
    return opened_and_closed and len(start) == 2 and start[1] in b'"{[\n ]}'
