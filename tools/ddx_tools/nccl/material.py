"""Where the logs of NCCL are: files that somebody brought, and the files that live ranks write."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from ddx_tools.errors import HostError
from ddx_tools.formats.launchers import Job
from ddx_tools.formats.log_lines import file_identity
from ddx_tools.formats.names import shown
from ddx_tools.formats.nccl_ras import read_ras
from ddx_tools.hosts.base import Host
from ddx_tools.nccl.gather import gather
from ddx_tools.nccl.parts import MOST_BYTES, Part, stretches
from ddx_tools.nccl.rows import log_rows
from ddx_tools.probe import Raw, RawItem, Rows
from ddx_tools.sources.intake import Intake, Material, intake_of
from ddx_tools.sources.kinds import Kind, nccl_shares, plain_name

LOG, RAS = "log", "ras"

_MOST_FILE_BYTES = 1 << 40
_PURE = 0.9
"""From this share of NCCL's lines on nobody else writes into a file: it is read where it lies."""
_WHY = "What NCCL logged there is not known."


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the logs of NCCL among some files and directories to `raw`; other files are left alone."""
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    pure: list[tuple[RawItem, int]] = []
    for material in taken.of(Kind.RAS):
        raw.items.append(RawItem(RAS, material.head, material.source, {"path": shown(material.path)}))
    for material in taken.of(Kind.NCCL):
        shares = nccl_shares(material.head, material.tail, named=material.named)
        if material.cut and min(shares) >= _PURE:
            _leave_in_place(raw, taken, material, pure)
        else:
            _take_parts(raw, material)
    _choose_stretches(raw, pure)
    raw.items += [item for item, _ in pure]
    found = f"{len(raw.of(LOG))} with lines of NCCL, {len(raw.of(RAS))} of RAS"
    raw.searched.append(f"{len(taken.materials)} files: {found}")


def _leave_in_place(raw: Raw, taken: Intake, log: Material, pure: list[tuple[RawItem, int]]) -> None:
    try:
        reply = taken.locate(log, _MOST_FILE_BYTES, "log")
    except HostError as error:
        raw.failed(shown(log.path), error, _WHY)
        return
    size = Path(reply.file).stat().st_size if reply.file else len(reply.data)
    facts = {"path": log.path, "stretches": [(0, size)], "base": 0}
    pure.append((RawItem(LOG, reply.data, log.source, facts, reply.file), size))


def _take_parts(raw: Raw, log: Material) -> None:
    for data, at_start in ((log.head, True), (log.tail, False)):
        if data:
            facts = {"path": log.path, "stretches": [(0, len(data))], "at_start": at_start}
            raw.items.append(RawItem(LOG, data, log.source, facts))
    if log.tail:
        read = f"only its first {len(log.head) >> 10} and last {len(log.tail) >> 10} KiB were read"
        raw.problems.append(f"{shown(log.path)}: {read}.")


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
        label = file_identity(plain_name(item.facts["path"])).rank
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
