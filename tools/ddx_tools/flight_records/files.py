"""Flight records out of files, directories and archives, told from everything else by their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddx_tools.errors import HostError, NotPermitted, NotRecorded
from ddx_tools.flight_records.material import DUMP, HEADER, PACKED
from ddx_tools.formats.archives import MAX_ARCHIVE_BYTES
from ddx_tools.formats.debug_pages import TABLES_HELP
from ddx_tools.formats.file_kinds import ARCHIVES, COMPRESSED, HEAD_BYTES, Kind, kind_of
from ddx_tools.formats.fr_origin import is_due
from ddx_tools.formats.fr_pickle import MAX_BYTES
from ddx_tools.formats.names import shown
from ddx_tools.hosts.base import FileSurvey, Host
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem

_MOST_RECORDS = 50_000
_MAX_HEADER_BYTES = 8 << 20
_MOST_PATH = 4096
_MOST_NAMED = 20
_WHY = "it may be the record of a rank"


def read_paths(host: Host, raw: Raw, paths: list[str], rank_pattern: str | None = None) -> None:
    """Add the records and side-cars among some files and directories to `raw`; other files are left alone."""
    survey = _survey_all(host, raw, paths)
    if survey.left_out:
        raw.problems += [shown(line) for line in survey.left_out]
        raw.status = ProbeStatus.PARTIAL
    tables = [path for path, kind, _ in survey.matter if kind == Kind.TABLE]
    if tables:
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        raw.problems.append(f"{shown(tables[-1])}{more}: {TABLES_HELP}")
    _note_unreadable(raw, [(path, why) for path, kind, why in survey.matter if kind is None])
    readable = {path: kind for path, kind, _ in survey.matter if kind is not None and kind != Kind.TABLE}
    for path in list(readable)[:_MOST_RECORDS]:
        _take(
            host, raw, path, readable[path], {"rank_pattern": rank_pattern, "written_ns": survey.written_ns.get(path)}
        )
    if len(readable) > _MOST_RECORDS:
        raw.problems.append(f"{len(readable)} flight records: only the first {_MOST_RECORDS} were read.")
        raw.status = ProbeStatus.PARTIAL
    found = f"{len(raw.of(DUMP))} flight records"
    if packed := len(raw.of(PACKED)):
        found += f", {packed} archives or compressed files of them"
    raw.searched += [f"{survey.files} files in {shown(', '.join(paths))}: {found}", *map(shown, survey.passed_over)]


def _survey_all(host: Host, raw: Raw, paths: list[str]) -> FileSurvey:
    """What lies below all the paths. One that cannot be read is named, and costs only itself."""
    whole = FileSurvey(0, [], [], [])
    for path in paths:
        try:
            part = _survey(host, path)
        except HostError as error:
            raw.failed(shown(path), error, _WHY)
        else:
            whole.matter.extend(part.matter)
            whole.passed_over.extend(part.passed_over)
            whole.left_out.extend(part.left_out)
            whole.written_ns.update(part.written_ns)
            whole = replace(whole, files=whole.files + part.files)
    return whole


def _note_unreadable(raw: Raw, files: list[tuple[str, str]]) -> None:
    for path, why in files[:_MOST_NAMED]:
        raw.failed(shown(path), NotPermitted(why, "Run ddx as the owner of the file, or with sudo."), _WHY)
    if len(files) > _MOST_NAMED:
        raw.problems.append(f"{len(files) - _MOST_NAMED} more files that may be records of ranks cannot be read.")


def _take(host: Host, raw: Raw, path: str, kind: str, known: Mapping[str, Any]) -> None:
    """Leave a file where it is, to be read when rows are made of it."""
    label = shown(path, _MOST_PATH)
    facts = {"path": label, "origin": "file", **known}
    if kind == Kind.HEADER:
        item, most = HEADER, _MAX_HEADER_BYTES
    elif kind in COMPRESSED | ARCHIVES:
        item, most = PACKED, MAX_ARCHIVE_BYTES
    else:
        item, most = DUMP, MAX_BYTES
    try:
        reply = host.locate(path, max_bytes=most)
    except HostError as error:
        raw.failed(label, error, _WHY)
        return
    raw.items.append(RawItem(item, reply.data, reply.source or label, facts, reply.file))


def _survey(host: Host, path: str) -> FileSurvey:
    try:
        return host.survey(path)
    except NotRecorded:
        return _sniffed(host, path)


def _sniffed(host: Host, path: str) -> FileSurvey:
    """The same out of a bundle of ddx 0.1, which holds the first bytes of every file instead."""
    files = host.files_below(path)
    matter: list[tuple[str, str | None, str]] = []
    for file in files:
        try:
            head = host.read(file, max_bytes=HEAD_BYTES, suffix="bin").data
        except HostError:
            if file == path:
                raise
            continue
        kind = kind_of(head)
        if kind in (Kind.DUMP, Kind.HEADER) or (kind in (Kind.EMPTY, Kind.PICKLE) and (file == path or is_due(file))):
            matter.append((file, kind, ""))
    return FileSurvey(len(files), matter, [], [])
