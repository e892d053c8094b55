"""Where the logs of NCCL are: files that somebody brought, and the files that live ranks write."""

from __future__ import annotations

import posixpath
import re

from ddx_tools.model.errors import HostError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.launch.launchers import Job
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.parsers.nccl.nccl_ras import RAS, ras_rows
from ddx_tools.probes.nccl_log.gather import LogFile, NcclLog
from ddx_tools.probes.nccl_log.rows import log_rows
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import Intake, intake_of, read_lines_of
from ddx_tools.sources.kinds import TextKind, plain_name
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows

LOG = "log"

_MOST_RAS_BYTES = 64 << 20
_WHY = "What NCCL logged there is not known."


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the logs of NCCL among some files and directories to `raw`; other files are left alone."""
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    reader = NcclLog()
    for material in taken.of(TextKind.RAS, TextKind.NCCL):
        try:
            raw.items += _items(raw, taken, material, reader)
        except HostError as error:
            raw.failed(shown(material.path), error, _WHY)
    found = f"{len(raw.of(LOG))} with lines of NCCL, {len(raw.of(RAS))} of RAS"
    raw.searched.append(f"{len(taken.materials)} files: {found}")


def _items(raw: Raw, taken: Intake, log: Material, reader: NcclLog) -> list[RawItem]:
    """The file, whose lines are read later; of one of which a bundle kept no more, its beginning and its end.

    Raises HostError.
    """
    if TextKind.RAS in log.kinds:
        return [RawItem(RAS, taken.beginning(log, _MOST_RAS_BYTES), log.source, {"path": shown(log.path)})]
    parts = taken.whole(log)
    if log.why_not:
        raw.problems.append(f"{shown(log.path)}: {log.why_not}.")
    rank = file_identity(plain_name(log.path)).rank
    items = []
    for part in parts:
        lines = reader.of(LogFile(part.source, part.open, part is parts[0], rank))
        part.wanted_by.append(lines)
        items.append(RawItem(LOG, b"", part.source, {"path": log.path, "part": part, "reader": reader}))
    return items


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
    read_lines_of(raw)
    logs = raw.of(LOG)
    reader = logs[0].facts["reader"] if logs else NcclLog()
    ends = {item.source: item.facts["part"].reading.ends_within_line for item in logs}
    rows = log_rows(reader.gathered({source for source, is_open in ends.items() if is_open}))
    ras = merge_rows(ras_rows(item.data, item.source, item.facts.get("taken_s")) for item in raw.of(RAS))
    return {**rows, **ras}


def live_job(host: Host, raw: Raw, job: Job) -> None:
    """Read what the ranks of a live job log; say where that is not written to a file, or not at all."""
    paths = paths_of_job(host, job)
    if not paths:
        raw.problems.append(
            f"The ranks of {job.id} log nothing of NCCL to a file. Next time set NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_FILE=/some/directory/nccl.%h.%p.log before the start (%d and others stay as they are)."
        )
    read_paths(host, raw, paths)
