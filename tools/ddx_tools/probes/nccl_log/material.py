"""Finds NCCL logs: files from the user, and files that live ranks write."""

from __future__ import annotations

import posixpath
import re

from ddx_tools.model.errors import HostError
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.launch.job_files import may_be_file, streams_of
from ddx_tools.parsers.launch.launchers import Job
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.parsers.nccl.nccl_inspector import INSPECTOR, inspector_rows
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
_INSPECTOR_BYTES = 512 << 10
"""The end of a file of NCCL Inspector that is read: thousands of operations, for as many ranks as there are files."""
_WHY = "What NCCL logged there is unknown."


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the NCCL logs among the given files and directories to `raw`; ignore other files."""
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    reader = NcclLog()
    for material in taken.of(TextKind.RAS, TextKind.INSPECTOR, TextKind.NCCL):
        try:
            raw.items += _items(raw, taken, material, reader)
        except HostError as error:
            raw.failed(shown(material.path), error, _WHY)
    found = f"{len(raw.of(LOG))} with NCCL lines, {len(raw.of(RAS))} with RAS output"
    if inspected := raw.of(INSPECTOR):
        found += f", {len(inspected)} of NCCL Inspector"
    raw.searched.append(f"{len(taken.materials)} files: {found}")


def _items(raw: Raw, taken: Intake, log: Material, reader: NcclLog) -> list[RawItem]:
    """The file, whose lines are read later; or its beginning and end, if a bundle kept no more.

    Raises HostError.
    """
    if TextKind.RAS in log.kinds:
        return [RawItem(RAS, taken.beginning(log, _MOST_RAS_BYTES), log.source, {"path": shown(log.path)})]
    if TextKind.INSPECTOR in log.kinds:
        end = taken.end(log, _INSPECTOR_BYTES)
        whole = not log.cut and len(end) == len(log.head)
        return [RawItem(INSPECTOR, end, log.source, {"path": shown(log.path), "whole": whole})]
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
    """Return the files that a live job's ranks log to: NCCL_DEBUG_FILE, or else their output."""
    found: dict[str, None] = {}
    for member in job.members:
        process = member.process
        if member.role != "rank" or process is None:
            continue
        named = process.env.get("NCCL_DEBUG_FILE")
        if named:
            found[posixpath.join(str(process.row.get("cwd") or "/"), debug_file(named, host.name, process.pid))] = None
            continue
        found |= dict.fromkeys(path for path in streams_of(process) if may_be_file(path))
    return list(found)


def debug_file(name: str, host: str, pid: int) -> str:
    """Return the file name for a value of NCCL_DEBUG_FILE: `%h`, `%p` and `%%` are replaced, anything else stays
    (debug.cc)."""
    known = {"h": host.partition(".")[0], "p": str(pid), "%": "%"}
    return re.sub(r"%(.)", lambda found: known.get(found[1], found[0]), name)


# --- rows


def material_rows(raw: Raw) -> Rows:
    """Return the rows of all tables whose names begin with `nccl_`."""
    read_lines_of(raw)
    logs = raw.of(LOG)
    reader = logs[0].facts["reader"] if logs else NcclLog()
    ends = {item.source: item.facts["part"].reading.ends_within_line for item in logs}
    rows = log_rows(reader.gathered({source for source, is_open in ends.items() if is_open}))
    ras = merge_rows(ras_rows(item.data, item.source, item.facts.get("taken_s")) for item in raw.of(RAS))
    finished = merge_rows(
        inspector_rows(item.data, item.source, whole_file=item.facts["whole"]) for item in raw.of(INSPECTOR)
    )
    return {**rows, **ras, **finished}


def live_job(host: Host, raw: Raw, job: Job) -> None:
    """Read the logs of a live job's ranks; report if they are not written to a file, or not at all."""
    paths = paths_of_job(host, job)
    if not paths:
        raw.problems.append(
            f"The ranks of {job.id} write no NCCL log to a file. Next time, set NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_FILE=/some/directory/nccl.%h.%p.log before the start (%d and others are not replaced)."
        )
    read_paths(host, raw, paths)
