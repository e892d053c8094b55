"""Probe `job_log`: what a job's output, its launcher and its last words say."""

from __future__ import annotations

import io
import json
import posixpath
import re
from collections.abc import Iterable

from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.error_file import parse_error_file
from ddx_tools.formats.launchers import Job
from ddx_tools.formats.log_lines import file_identity, is_text_log
from ddx_tools.formats.process_table import Process
from ddx_tools.hosts.base import Host
from ddx_tools.logs.error_rows import error_file_row
from ddx_tools.logs.findings import log_findings
from ddx_tools.logs.scan import scan_log
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Probe, ProbeArgs, Raw, RawItem, Rows, merge_rows
from ddx_tools.probes.jobs import find_jobs, select_job

_PART_BYTES = 8 << 20
_ALL_BYTES = 64 << 20
"""Reading goes at about 10 MB/s: of many big logs, shorter heads and tails are read."""
_LEAST_BYTES = 128 << 10
_FILES_LIMIT = 2_000
_UNKNOWN_HOST = "unknown"
_ERROR_FILE = re.compile(r"(/.{1,4000})/attempt_\d+/\d+/error\.json$")
# What lies beside logs in a training directory and is not one; reading it would only fill the bundle.
_NOT_A_LOG = re.compile(
    r"\.(?:bin|bz2|ckpt|csv|distcp|gif|gz|h5|ipynb|jpe?g|mp4|np[yz]|onnx|parquet|pdf|pickle|pipe|pkl|png|pth?|pyc?"
    r"|safetensors|so|sock|svg|tar|toml|whl|xz|ya?ml|zip|zst)$",
    re.I,
)


class JobLogArgs(ProbeArgs):
    """The target: log files, directories of them, a run directory of `ddx run`, or a pid of a live job."""


def capture(host: Host, args: JobLogArgs) -> Raw:
    """Read the head and the tail of every log; what is not a log is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    if not paths:
        paths = _paths_of_live_job(host, args, raw)
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
    return [file for file in host.files_below(path) if file == path or not _NOT_A_LOG.search(file)]


def _read(host: Host, raw: Raw, path: str, part_bytes: int, *, named: bool) -> None:
    try:
        head = host.read(path, max_bytes=part_bytes)
        parts = [("", head)]
        if head.truncated and is_text_log(head.data):
            parts.append(("tail", host.read(path, max_bytes=part_bytes, tail=True)))
            raw.problems.append(f"{path}: only the first and the last {part_bytes >> 10} KiB of it were read.")
    except NotFound:
        if named:
            raw.problems.append(f"{path}: no such file. Name log files, or a directory that holds them.")
        return
    except HostError as error:
        raw.failed(path, error, "What this log says of the ranks is not known.")
        return
    for part, reply in parts:
        kind = _kind(reply.data)
        if kind:
            facts = {"path": path, "part": part or ("head" if reply.truncated else "whole")}
            raw.items.append(RawItem(kind, reply.data, reply.source or path, facts))
        elif named and reply.data:
            raw.problems.append(f"{path}: not a text log (left to the probes that read dumps).")


def _kind(data: bytes) -> str | None:
    if parse_error_file(data):
        return "error_file"
    return "log" if is_text_log(data) else None


# --- a live job


def _paths_of_live_job(host: Host, args: JobLogArgs, raw: Raw) -> list[str]:
    """Where the job's output goes, as far as it goes to files, and the directory of `ddx run`."""
    job = select_job(find_jobs(json.loads(host.processes().data)), args.target)
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


# --- rows


def parse(raw: Raw) -> Rows:
    """Rows of `log_events`."""
    host = None if raw.host == _UNKNOWN_HOST else raw.host
    return merge_rows(_rows(item, host) for item in raw.items)


def _rows(item: RawItem, host: str | None) -> Rows:
    identity = file_identity(item.facts["path"])
    if item.kind == "error_file":
        content = parse_error_file(item.data)
        return {"log_events": [error_file_row(content, item.source, identity, host)] if content else []}
    return {"log_events": scan_log(io.BytesIO(item.data), item.source, identity, host)}


PROBE = Probe(
    id="job_log",
    title="Logs and last words",
    description=(
        "Reads the output of a distributed job (a launcher's log with all ranks mixed, a file for each rank, "
        "torchrun's log directory, a run directory of `ddx run`) and says how each rank ended: exceptions with "
        "the line that raised them, signals and exit codes, fatal errors, timeouts and lost connections; and "
        "which failure stands on its own while the others only follow from it."
    ),
    args=JobLogArgs,
    finding_codes=(
        "job.ended",
        "rank.raised",
        "rank.killed",
        "rank.exited",
        "rank.aborted_on_size",
        "collective.timeout_reported",
        "collective.connection_lost",
        "collective.missing_ranks",
        "collective.operation_mismatch",
        "collective.shape_mismatch",
        "collective.dtype_mismatch",
        "log.signature",
    ),
    capture=capture,
    parse=parse,
    table=(
        "SELECT rank, kind, code, exit_code, text, file, line, function, source, source_line FROM log_events "
        "WHERE kind IN ('traceback', 'exit', 'failure_summary', 'fatal_stack', 'watchdog', 'gloo', 'error_file') "
        "ORDER BY source, source_line"
    ),
    analyse=log_findings,
)
