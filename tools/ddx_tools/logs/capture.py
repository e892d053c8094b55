"""Which files are logs of a job, and the head and tail of each."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Sequence

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.error_file import parse_error_file
from ddx_tools.formats.file_suffixes import NO_LOG, suffix
from ddx_tools.formats.launchers import Job, find_jobs
from ddx_tools.formats.log_lines import is_text_log
from ddx_tools.formats.log_text import as_utf8
from ddx_tools.formats.process_table import Process
from ddx_tools.hosts.base import Host
from ddx_tools.job_target import select_job
from ddx_tools.logs.packed import head_and_tail, is_packed_log
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem
from ddx_tools.sources.redaction.text import redact_bytes

_PART_BYTES = 32 << 20
_ALL_BYTES = 96 << 20
"""Reading, without secrets, takes some 2 s for 100 MB: of many big logs, shorter heads and tails are read."""
_LEAST_BYTES = 128 << 10
_PACKED_BYTES = 64 << 20
_PACKED_PART_BYTES = 16 << 20
_ERROR_FILE_BYTES = 1 << 20
_OVERLAP_BYTES = 4 << 10
_FILES_LIMIT = 2_000
_ERROR_FILE = re.compile(r"(/.{1,4000})/attempt_\d+/\d+/error\.json$")
_PACKED_LOG = re.compile(r"\.(?:log|out|err|txt|stdout|stderr)(?:[.-][\w-]{1,40})?\.(?:gz|zst|zstd)$", re.I)


def capture_logs(host: Host, target: Sequence[str]) -> Raw:
    """Read the head and the tail of every log; what is not a log is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in target if not item.isdigit()]
    if not paths:
        paths = _paths_of_live_job(host, target, raw)
    files = list(dict.fromkeys(file for path in paths for file in _logs_below(host, path)))
    if len(files) > _FILES_LIMIT:
        raw.problems.append(f"{len(files)} files: only the first {_FILES_LIMIT} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    part_bytes = max(_LEAST_BYTES, min(_PART_BYTES, _ALL_BYTES // (2 * max(1, len(files)))))
    for file in files[:_FILES_LIMIT]:
        _read(host, raw, file, part_bytes, named=file in paths)
    raw.searched.append(f"{len(raw.items)} logs and error files among {len(files)} files")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _logs_below(host: Host, path: str) -> list[str]:
    found = host.files_below(path)
    return [file for file in found if file == path or _PACKED_LOG.search(file) or suffix(file) not in NO_LOG]


def _read(host: Host, raw: Raw, path: str, part_bytes: int, *, named: bool) -> None:
    try:
        if path.endswith((".gz", ".zst", ".zstd")):
            items = _packed(host, raw, path)
        else:
            items = _plain(host, raw, path, part_bytes)
    except NotFound:
        if named:
            raw.problems.append(f"{path}: no such file. Name log files, or a directory that holds them.")
        return
    except HostError as error:
        raw.failed(path, error, "What this log says of the ranks is not known.")
        return
    raw.items += items
    if named and not items:
        raw.problems.append(f"{path}: not a text log (left to the probes that read dumps).")


def _plain(host: Host, raw: Raw, path: str, part_bytes: int) -> list[RawItem]:
    head = host.read(path, max_bytes=part_bytes)
    kind = _kind(head.data.lstrip(b"\0"))
    if kind is None:
        return []
    facts = {"path": path, "part": "head" if head.truncated else "whole"}
    items = [RawItem(kind, as_utf8(head.data), head.source or path, facts)]
    if head.truncated:
        tail = host.read(path, max_bytes=part_bytes, tail=True)
        overlap = _overlap(head.data, tail.data)
        if not overlap:
            raw.problems.append(f"{path}: only the first and the last {part_bytes >> 10} KiB of it were read.")
        first_line = 1 + tail.data.count(b"\n", 0, overlap)
        rest = {"path": path, "part": "tail", "first_line": first_line}
        items.append(RawItem(kind, as_utf8(tail.data[overlap:]), tail.source or path, rest))
    return items


def _overlap(head: bytes, tail: bytes) -> int:
    """How many bytes at the end of the head are those at the beginning of the tail."""
    at = head.find(tail[:_OVERLAP_BYTES]) if tail[:_OVERLAP_BYTES].strip(b"\0") else -1
    while at >= 0:
        if tail.startswith(head[at:]):
            return len(head) - at
        at = head.find(tail[:_OVERLAP_BYTES], at + 1)
    return 0


def _packed(host: Host, raw: Raw, path: str) -> list[RawItem]:
    reply = host.read(path, max_bytes=_PACKED_BYTES, suffix="bin")
    if not is_packed_log(reply.data):
        return []
    parts, problem = head_and_tail(reply.data, _PACKED_PART_BYTES)
    if reply.truncated or problem:
        reason = problem or f"only the first {_PACKED_BYTES >> 20} MiB of it were read"
        raw.problems.append(f"{path}: its end is not known ({reason}). Unpack it, and name what comes out.")
    if len(parts) > 1:
        raw.problems.append(f"{path}: only the first and the last {_PACKED_PART_BYTES >> 20} MiB of it were read.")
    is_cut = bool(reply.truncated or problem)
    return [
        RawItem(
            "log",
            redact_bytes(part.data),
            reply.source or path,
            {"path": path, "first_line": part.first_line, "cut": is_cut},
        )
        for part in parts
    ]


def _kind(data: bytes) -> str | None:
    if len(data) <= _ERROR_FILE_BYTES and parse_error_file(data):
        return "error_file"
    return "log" if is_text_log(data) else None


# --- a live job


def _paths_of_live_job(host: Host, target: Sequence[str], raw: Raw) -> list[str]:
    """Where the job's output goes, as far as it goes to files, and the directory of `ddx run`."""
    job = select_job(find_jobs(json.loads(host.processes().data)), target)
    outputs = list(dict.fromkeys(_outputs(job)))
    files = [path for path in outputs if _may_be_file(path)]
    raw.searched.append(f"the output of {job.id}: {', '.join(outputs[:8]) or 'unknown'}")
    if outputs and not files:
        raw.problems.append(
            f"The output of {job.id} goes to no file ({', '.join(outputs[:3])}): what it printed cannot be read. "
            "Start it with `ddx run -- …`, or redirect its output into a file."
        )
    processes = [member.process for member in job.members if member.process]
    directories = {process.env.get("DDX_RUN_DIR") or _log_directory(process) for process in processes}
    return sorted(path for path in directories if path) + files


def _outputs(job: Job) -> Iterable[str]:
    for member in job.members:
        if member.role in ("rank", "launcher") and member.process:
            streams = member.process.row.get("fds") or {}
            yield from (streams[fd] for fd in ("1", "2") if streams.get(fd))


def _log_directory(process: Process) -> str | None:
    """The directory in which torchrun keeps a run's files; its error files lie in <attempt>/<local rank>/."""
    error_file = posixpath.join(str(process.row.get("cwd") or ""), process.env.get("TORCHELASTIC_ERROR_FILE", ""))
    found = _ERROR_FILE.match(error_file)
    return found[1] if found else None


def _may_be_file(path: str) -> bool:
    return path.startswith("/") and not path.startswith(("/dev/", "/proc/")) and not path.endswith(" (deleted)")
