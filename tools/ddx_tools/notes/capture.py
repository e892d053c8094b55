"""Which files somebody wrote by hand, and the reports in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.log_lines import is_text_log
from ddx_tools.formats.prose import TEXT_LIMIT, is_note
from ddx_tools.formats.user_report import Report, read_reports
from ddx_tools.hosts.base import Host
from ddx_tools.hosts.written import NOTE_PATH
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem, Rows

_READ_BYTES = 4 * TEXT_LIMIT
_MOST_FILES = 50
_NAMED_SO = re.compile(
    r"(?:^|[-_. ])(?:notes?|issues?|report|description|question|problem|bug|symptoms?|thread|post|observations?)"
    r"(?:[-_. ]\S{0,40})?$|^readme",
    re.I,
)
_WRITTEN_BY_HAND = re.compile(r"\.(?:md|markdown|rst|txt)$", re.I)


def capture_notes(host: Host, target: Sequence[str]) -> Raw:
    """Keep what a person wrote; what turns out to be a log or a program's output is left to other probes."""
    raw = Raw(host.name)
    looked_at = 0
    for path in [item for item in target if not item.isdigit()]:
        for file in _candidates(host, path):
            if looked_at >= _MOST_FILES:
                raw.problems.append(f"Only the first {_MOST_FILES} files that may be notes were read.")
                raw.status = ProbeStatus.PARTIAL
                break
            looked_at += 1
            _read(host, raw, file, named=file == path)
    raw.searched.append(f"{len(raw.items)} notes among {looked_at} files that may be some")
    if not raw.items and raw.status is ProbeStatus.OK:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _candidates(host: Host, path: str) -> list[str]:
    """The file itself, or what is written by hand below a directory; a project's pages deeper down are not about us."""
    if path == NOTE_PATH:
        return [path]
    depth = len(PurePosixPath(path).parts)
    return [
        file
        for file in host.files_below(path)
        if file == path
        or (
            _WRITTEN_BY_HAND.search(file)
            and (_NAMED_SO.search(PurePosixPath(file).stem) or file.lower().endswith(".txt"))
            and len(PurePosixPath(file).parts) <= depth + 2
        )
    ]


def _read(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    try:
        reply = host.read(path, max_bytes=_READ_BYTES)
    except NotFound:
        return  # the probe that reads logs says so
    except HostError as error:
        raw.failed(path, error, "What somebody wrote there is not known.")
        return
    named_so = path == NOTE_PATH or bool(_NAMED_SO.search(PurePosixPath(path).stem))
    if is_text_log(reply.data) and is_note(_text(reply.data), named_so=named_so):
        raw.items.append(RawItem("note", reply.data, reply.source or path, {"path": path, "named": named}))


def _text(data: bytes) -> str:
    return data[:_READ_BYTES].decode("utf-8", "replace")


def report_rows(raw: Raw) -> Rows:
    """Rows of `user_reports`."""
    rows = [_row(report, item) for item in raw.of("note") for report in read_reports(_text(item.data))]
    return {"user_reports": rows}


def _row(report: Report, item: RawItem) -> dict[str, object]:
    return {
        "fact": report.fact,
        "negated": report.negated,
        "quote": report.quote,
        "source": item.source,
        "source_line": report.line,
    }
