"""Reads pages of `torch.distributed.debug`: pages with records, and tables of its own analysis.

The page `/fr_trace_json` of the front end contains every rank's whole record as JSON: it can be saved and read here.
`/fr_trace`, and `fr_trace_<date>_<time>.txt` of the periodic dumper, contain tables that `torchfrtrace` made from the
records: entries are missing, and one rank's state stands for all. They are recognised and reported, but not read.

Source: torch 2.13.0, torch/distributed/debug/_frontend.py (JSON_RESP_TEMPLATE, PeriodicDumper) and _debug_handlers.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from ddx_tools.model.errors import UnreadableInput

TABLES_HELP = (
    "a table of the debug server's own analysis, not records: it was not read. "
    "Save the page /fr_trace_json of that server instead, or name its workers: --endpoint RANK=URL"
)
_RANK = re.compile(rb"<h2>Rank (\d{1,7}): (\S{1,500})</h2>")
_OPEN, _CLOSE, _FAILED = b"<pre>", b"</pre>", b"<p>Failed to fetch: status="
_WORKER = re.compile(
    rb"^[ \t]{0,40}(?:[^\s/]{1,100}/){0,3}debug_server/rank(\d{1,7}): b(?:'|&#39;)(https?://[^'&\s]{1,300})(?:'|&#39;)$",
    re.M,
)
_MOST_WORKERS = 65_536
_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class RecordOfPage:
    """One rank's part of a page."""

    rank: int
    host: str | None
    """The host name in the server's store, as the rank named its own machine."""
    only_active: bool
    """Whether the front end asked NCCL's recorder only for incomplete operations."""
    data: bytes
    """The rank's answer, such as the JSON of a flight record, or the server's message instead."""
    failed: bool = False
    """Whether the front end got no answer, so that `data` says why."""


def records_of_page(file: BinaryIO, most_bytes: int) -> Iterator[RecordOfPage]:
    """Yield the ranks' parts of a page as they are read. Raises UnreadableInput if a part is too large or there is
    none."""
    rank: re.Match[bytes] | None = None
    part: bytearray | None = None
    failed = False
    count = 0
    while line := file.readline(_LINE_BYTES):
        if part is None:
            rank = _RANK.search(line) or rank
            failed = failed or _FAILED in line
            _, found, rest = line.partition(_OPEN)
            if not (found and rank):
                continue
            part, line = bytearray(), rest
        content, closed, _ = line.partition(_CLOSE)
        part += content
        if len(part) > most_bytes:
            raise UnreadableInput(f"a rank's part is larger than the limit of {most_bytes >> 20} MiB")
        if closed and rank:
            # A browser that saves a page escapes characters that the server did not.
            data = html.unescape(part.decode("utf-8", "replace")).encode()
            yield RecordOfPage(int(rank[1]), _host(rank[2]), b"onlyactive=true" in rank[2], data, failed)
            rank = part = None
            failed = False
            count += 1
    if part is None and not count:
        raise UnreadableInput(TABLES_HELP)
    if part is not None:
        raise UnreadableInput("the page is cut off inside a rank's record")


def workers_of_page(page: bytes) -> list[tuple[int, str]]:
    """Return rank and URL of each rank's server, sorted by rank, from the front end's page `/tcpstore`."""
    found = {int(one[1]): one[2].decode("ascii", "replace") for one in _WORKER.finditer(page)}
    return sorted(found.items())[:_MOST_WORKERS]


def _host(url: bytes) -> str | None:
    try:
        host = urlsplit(url.decode("utf-8", "replace")).hostname
    except ValueError:
        return None
    return host[:255] if host else None
