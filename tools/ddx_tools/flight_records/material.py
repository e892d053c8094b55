"""The raw items of a capture of flight records, and the rows they become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_dump import FrDump, read_dump
from ddx_tools.formats.fr_origin import DumpOrigin, is_header, origin_of_header, rank_of_name
from ddx_tools.formats.fr_rows import rows_of
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows

DUMP = "dump"
"""Bytes of a record. Facts: `origin`; `path` of a file; `header` of an agent; `rank`, `taken_ns` if known."""
HEADER = "header"
"""A side-car JSON of a file's rank. Facts: `path`."""

_EXCEPTION_LABEL = ".exception."


def record_rows(raw: Raw) -> Rows:
    """Rows of all records of a capture. What cannot be read becomes a line in `raw.problems`."""
    headers = _headers(raw)
    parts: list[Rows] = []
    for item in raw.of(DUMP):
        name = str(item.facts.get("path") or item.source)
        try:
            dump = read_dump(item.data)
        except UnreadableInput as error:
            raw.status = ProbeStatus.PARTIAL
            raw.problems.append(f"{name}: {error}")
            continue
        origin = _origin(item, headers)
        if _is_of_an_earlier_job(dump, item):
            raw.problems.append(f"{name}: left out, it is older than the job that runs now")
            continue
        if origin.rank is None:
            raw.status = ProbeStatus.PARTIAL
            raw.problems.append(
                f"{name}: nothing says which rank wrote it, so it cannot be compared. "
                "A record does not hold its rank: rename the file to end in it, as in nccl_trace_rank_3."
            )
        parts.append(rows_of(dump, origin))
    return merge_rows(parts)


def _headers(raw: Raw) -> list[tuple[str, Mapping[str, Any]]]:
    """(path, header) of the side-cars that are readable."""
    found = []
    for item in raw.of(HEADER):
        try:
            value = json.loads(item.data)
        except (ValueError, RecursionError):
            raw.problems.append(f"{item.facts['path']}: damaged or truncated JSON")
            continue
        if is_header(value):
            found.append((str(item.facts["path"]), value))
    return found


def _origin(item: RawItem, headers: list[tuple[str, Mapping[str, Any]]]) -> DumpOrigin:
    path = item.facts.get("path")
    header = item.facts.get("header")
    kind = str(item.facts["origin"])
    if header is None and path is not None:
        header = next((known for at, known in headers if _belongs(str(path), at, known)), None)
        if header is not None and _EXCEPTION_LABEL in str(path).rsplit("/", 1)[-1]:
            kind = "exception"
    if header is not None:
        origin = origin_of_header(header, item.source, kind)
    else:
        origin = DumpOrigin(item.source, kind, rank_of_name(str(path)) if path else None)
    for known in ("rank", "taken_ns"):
        if item.facts.get(known) is not None:
            origin = replace(origin, **{known: item.facts[known]})
    return replace(origin, only_active=item.facts.get("only_active"))


def _belongs(path: str, header_path: str, header: Mapping[str, Any]) -> bool:
    """Whether a header lies beside a dump: it names the file, or shares all of its name before the ending."""
    folder, _, name = path.rpartition("/")
    header_folder, _, header_name = header_path.rpartition("/")
    if folder != header_folder:
        return False
    parts = header.get("parts")
    if isinstance(parts, list) and any(isinstance(part, dict) and part.get("file") == name for part in parts):
        return True
    stem = header_name.removesuffix(".json").removesuffix(".header")
    return name.startswith(f"{stem}.") or name == stem


def _is_of_an_earlier_job(dump: FrDump, item: RawItem) -> bool:
    """A file in a default place may have been left by another job: its newest entry tells."""
    started_ns = item.facts.get("started_ns")
    newest = max((entry.created_ns for entry in dump.entries if entry.created_ns), default=None)
    return started_ns is not None and newest is not None and newest < started_ns
