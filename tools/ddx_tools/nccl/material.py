"""Where the logs of NCCL are: files that somebody brought, and the files that live ranks write."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.file_suffixes import NO_LOG, suffix
from ddx_tools.formats.launchers import Job
from ddx_tools.formats.log_lines import file_identity
from ddx_tools.formats.names import shown
from ddx_tools.formats.nccl_lines import holds_nccl
from ddx_tools.formats.nccl_ras import is_ras, read_ras
from ddx_tools.hosts.base import Host
from ddx_tools.model import ProbeStatus
from ddx_tools.nccl.gather import LogFile, gather
from ddx_tools.nccl.rows import log_rows
from ddx_tools.probe import Raw, RawItem, Rows

LOG, RAS = "log", "ras"

_LOOK_BYTES = 64 << 10
"""So much of the beginning and the end of a file tells whether NCCL wrote into it;"""
_LONG_LOOK_BYTES = 4 << 20
"""so much of a file that somebody named himself."""
_MOST_FILE_BYTES = 1 << 40
_MOST_FILES = 4_000
_MOST_RAS_BYTES = 64 << 20
_WHY = "What NCCL logged there is not known."


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the logs of NCCL among some files and directories to `raw`; other files are left alone."""
    files = list(dict.fromkeys(file for path in paths for file in _files(host, raw, path)))
    if len(files) > _MOST_FILES:
        raw.problems.append(f"{len(files)} files: only the first {_MOST_FILES} were looked at. Name fewer.")
        raw.status = ProbeStatus.PARTIAL
    for file in files[:_MOST_FILES]:
        _take(host, raw, file, named=file in paths)
    raw.searched.append(f"{len(files)} files: {len(raw.of(LOG))} with lines of NCCL, {len(raw.of(RAS))} of RAS")


def _files(host: Host, raw: Raw, path: str) -> list[str]:
    try:
        return [file for file in host.files_below(path) if file == path or suffix(file) not in NO_LOG]
    except HostError as error:
        raw.failed(shown(path), error, _WHY)
        return []


def _take(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    try:
        look = _LONG_LOOK_BYTES if named else _LOOK_BYTES
        head = host.read(path, max_bytes=look)
        if is_ras(head.data.decode("utf-8", "replace")):
            whole = host.read(path, max_bytes=_MOST_RAS_BYTES) if head.truncated else head
            raw.items.append(RawItem(RAS, whole.data, whole.source or shown(path), {"path": shown(path)}))
            return
        looks = [head.data]
        if head.truncated and b"\0" not in head.data:
            looks.append(host.read(path, max_bytes=look, tail=True).data)
        if any(map(holds_nccl, looks)):
            raw.items += _logs(host, raw, path)
    except NotFound:
        if named:
            raw.problems.append(f"{shown(path)}: no such file. Name logs of NCCL, or a directory that holds them.")
    except HostError as error:
        raw.failed(shown(path), error, _WHY)


def _logs(host: Host, raw: Raw, path: str) -> Iterator[RawItem]:
    """The file where it lies; of one of which a bundle kept no more, its beginning and its end."""
    whole = host.locate(path, max_bytes=_MOST_FILE_BYTES, suffix="log")
    yield RawItem(LOG, whole.data, whole.source or shown(path), {"path": path, "at_start": True}, whole.file)
    if whole.truncated:
        end = host.read(path, max_bytes=_MOST_FILE_BYTES, tail=True)
        yield RawItem(LOG, end.data, end.source or shown(path), {"path": path, "at_start": False})
        raw.problems.append(f"{shown(path)}: the bundle holds its beginning and its end only.")


# --- a live job


def paths_of_job(host: Host, job: Job) -> list[str]:
    """The files that the ranks of a live job log to: NCCL_DEBUG_FILE, or else their output."""
    found: dict[str, None] = {}
    for member in job.members:
        process = member.process
        if member.role != "rank" or process is None:
            continue
        named = process.env.get("NCCL_DEBUG_FILE")
        if named:
            found[posixpath.join(str(process.row.get("cwd") or "/"), debug_file(named, host.name, process.pid))] = None
            continue
        streams = process.row.get("fds") or {}
        found |= dict.fromkeys(streams[fd] for fd in ("1", "2") if _may_be_file(streams.get(fd)))
    return list(found)


def debug_file(name: str, host: str, pid: int) -> str:
    """The file that NCCL_DEBUG_FILE stands for: `%h`, `%p` and `%%` are replaced, anything else stays (debug.cc)."""
    known = {"h": host.partition(".")[0], "p": str(pid), "%": "%"}
    return re.sub(r"%(.)", lambda found: known.get(found[1], found[0]), name)


def _may_be_file(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and not path.startswith(("/dev/", "/proc/"))


# --- rows


def material_rows(raw: Raw) -> Rows:
    """Rows of all tables whose names begin with `nccl_`."""
    logs = (
        LogFile(item.source, item.open, item.facts["at_start"], file_identity(item.facts["path"]).rank)
        for item in raw.of(LOG)
    )
    rows = log_rows(gather(logs))
    rows["nccl_ras"] = []
    for item in raw.of(RAS):
        for fact in read_ras(item.data.decode("utf-8", "replace")):
            row = {name: getattr(fact, name) for name in fact.__dataclass_fields__ if name not in ("line", "ranks")}
            rows["nccl_ras"].append({**row, "ranks": list(fact.ranks), "source": item.source, "source_line": fact.line})
    return rows


def live_job(host: Host, raw: Raw, job: Job) -> None:
    """Read what the ranks of a live job log; say where that is not written to a file, or not at all."""
    paths = paths_of_job(host, job)
    if not paths:
        raw.problems.append(
            f"The ranks of {job.id} log nothing of NCCL to a file. Next time set NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_FILE=/some/directory/nccl.%h.%p.log before the start (%d and others stay as they are)."
        )
    read_paths(host, raw, paths)
