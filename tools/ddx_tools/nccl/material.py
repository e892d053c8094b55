"""Where the logs of NCCL are: files that somebody brought, and the files that live ranks write."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.file_suffixes import NO_LOG, suffix
from ddx_tools.formats.launchers import Job
from ddx_tools.formats.log_lines import file_identity
from ddx_tools.formats.names import shown
from ddx_tools.formats.nccl_lines import nccl_share
from ddx_tools.formats.nccl_ras import is_ras, read_ras
from ddx_tools.hosts.base import Host
from ddx_tools.model import ProbeStatus
from ddx_tools.nccl.gather import gather
from ddx_tools.nccl.parts import MOST_BYTES, Part, stretches
from ddx_tools.nccl.rows import log_rows
from ddx_tools.probe import Raw, RawItem, Rows

LOG, RAS = "log", "ras"

_LOOK_BYTES = 64 << 10
"""So much of the beginning and the end of a file tells whether NCCL wrote into it;"""
_LONG_LOOK_BYTES = 4 << 20
"""so much of a file that somebody named himself."""
_MIXED_BYTES = 32 << 20
"""Of a log that others wrote into as well, so much of the beginning and of the end is read, with secrets removed."""
_MOST_FILE_BYTES = 1 << 40
_MOST_FILES = 4_000
_MOST_RAS_BYTES = 64 << 20
_PURE = 0.9
"""From this share of NCCL's lines on nobody else writes into a file: it is read where it lies."""
_WHY = "What NCCL logged there is not known."


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the logs of NCCL among some files and directories to `raw`; other files are left alone."""
    files = list(dict.fromkeys(file for path in paths for file in _files(host, raw, path)))
    if len(files) > _MOST_FILES:
        raw.problems.append(f"{len(files)} files: only the first {_MOST_FILES} were looked at. Name fewer.")
        raw.status = ProbeStatus.PARTIAL
    pure: list[tuple[RawItem, int]] = []
    for file in files[:_MOST_FILES]:
        _take(host, raw, file, pure, named=file in paths)
    _choose_stretches(raw, pure)
    raw.items += [item for item, _ in pure]
    raw.searched.append(f"{len(files)} files: {len(raw.of(LOG))} with lines of NCCL, {len(raw.of(RAS))} of RAS")


def _files(host: Host, raw: Raw, path: str) -> list[str]:
    try:
        return [file for file in host.files_below(path) if file == path or suffix(file) not in NO_LOG]
    except HostError as error:
        raw.failed(shown(path), error, _WHY)
        return []


def _take(host: Host, raw: Raw, path: str, pure: list[tuple[RawItem, int]], *, named: bool) -> None:
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
        shares = [share for data in looks if (share := nccl_share(data)) is not None]
        if not shares:
            return
        if min(shares) >= _PURE and len(shares) == len(looks):
            pure.append(_in_place(host, path))
        else:
            _read_mixed(host, raw, path)
    except NotFound:
        if named:
            raw.problems.append(f"{shown(path)}: no such file. Name logs of NCCL, or a directory that holds them.")
    except HostError as error:
        raw.failed(shown(path), error, _WHY)


def _in_place(host: Host, path: str) -> tuple[RawItem, int]:
    reply = host.locate(path, max_bytes=_MOST_FILE_BYTES, suffix="log")
    size = Path(reply.file).stat().st_size if reply.file else len(reply.data)
    facts = {"path": path, "stretches": [(0, size)], "base": 0}
    return RawItem(LOG, reply.data, reply.source or shown(path), facts, reply.file), size


def _read_mixed(host: Host, raw: Raw, path: str) -> None:
    head = host.read(path, max_bytes=_MIXED_BYTES)
    facts = {"path": path, "stretches": [(0, len(head.data))], "at_start": True}
    raw.items.append(RawItem(LOG, head.data, head.source or shown(path), facts))
    if head.truncated:
        tail = host.read(path, max_bytes=_MIXED_BYTES, tail=True)
        facts = {"path": path, "stretches": [(0, len(tail.data))], "at_start": False}
        raw.items.append(RawItem(LOG, tail.data, tail.source or shown(path), facts))
        raw.problems.append(f"{shown(path)}: only its first and last {_MIXED_BYTES >> 20} MiB were read.")


def _choose_stretches(raw: Raw, pure: list[tuple[RawItem, int]]) -> None:
    chosen = stretches([size for _, size in pure], MOST_BYTES)
    left_out = 0
    for (item, size), some in zip(pure, chosen, strict=True):
        item.facts["stretches"] = some
        left_out += size - sum(end - start for start, end in some)
    if left_out:
        raw.problems.append(
            f"Of {sum(size for _, size in pure) >> 20} MiB of logs the beginnings and the ends were read, "
            f"{left_out >> 20} MiB between them were not. Name fewer files to have them read whole."
        )


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
    rows = log_rows(gather(list(_parts(raw))))
    rows["nccl_ras"] = []
    for item in raw.of(RAS):
        for fact in read_ras(item.data.decode("utf-8", "replace")):
            row = {name: getattr(fact, name) for name in fact.__dataclass_fields__ if name not in ("line", "ranks")}
            rows["nccl_ras"].append({**row, "ranks": list(fact.ranks), "source": item.source, "source_line": fact.line})
    return rows


def _parts(raw: Raw) -> Iterator[Part]:
    for item in raw.of(LOG):
        label = file_identity(item.facts["path"]).rank
        for start, end in item.facts["stretches"]:
            at_start = start == 0 and item.facts.get("at_start", True)
            yield Part(item.source, item.file, item.data, start, end, at_start, label)


def live_job(host: Host, raw: Raw, job: Job) -> None:
    """Read what the ranks of a live job log; say where that is not written to a file, or not at all."""
    paths = paths_of_job(host, job)
    if not paths:
        raw.problems.append(
            f"The ranks of {job.id} log nothing of NCCL to a file. Next time set NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_FILE=/some/directory/nccl.%h.%p.log before the start (%d and others stay as they are)."
        )
    read_paths(host, raw, paths)
