"""Which files are logs of a job. The logs themselves stay where they are until they are read."""

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
from ddx_tools.logs.packed import is_packed_log
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Raw, RawItem
from ddx_tools.sources.redaction.text import redact_bytes

_HEAD_BYTES = 1 << 20
"""So much of a file tells what it is; what is no longer is taken along."""
_MOST_FILE_BYTES = 1 << 40
_PACKED_BYTES = 64 << 20
_TAIL_BYTES = 4 << 10
_FILES_LIMIT = 2_000
_ERROR_FILE = re.compile(r"(/.{1,4000})/attempt_\d+/\d+/error\.json$")
_PACKED_LOG = re.compile(r"\.(?:log|out|err|txt|stdout|stderr)(?:[.-][\w-]{1,40})?\.(?:gz|zst|zstd)$", re.I)


def capture_logs(host: Host, target: Sequence[str]) -> Raw:
    """Find every log; what is not one is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in target if not item.isdigit()]
    if not paths:
        paths = _paths_of_live_job(host, target, raw)
    files = list(dict.fromkeys(file for path in paths for file in _logs_below(host, path)))
    if len(files) > _FILES_LIMIT:
        raw.problems.append(f"{len(files)} files: only the first {_FILES_LIMIT} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    for file in files[:_FILES_LIMIT]:
        _read(host, raw, file, named=file in paths)
    raw.searched.append(f"{len(raw.items)} logs and error files among {len(files)} files")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _logs_below(host: Host, path: str) -> list[str]:
    found = host.files_below(path)
    return [file for file in found if file == path or _PACKED_LOG.search(file) or suffix(file) not in NO_LOG]


def _read(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    try:
        if path.endswith((".gz", ".zst", ".zstd")):
            items = _packed(host, path)
        else:
            items = _plain(host, raw, path)
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


def _plain(host: Host, raw: Raw, path: str) -> list[RawItem]:
    head = host.read(path, max_bytes=_HEAD_BYTES)
    text = head.data.strip(b"\0")
    if head.truncated and (not text or text.lstrip()[:1] in (b"{", b"[")):  # a hole, or JSON, which its end tells
        text += host.read(path, max_bytes=_TAIL_BYTES, tail=True).data.strip(b"\0")
    kind = _kind(text)
    if kind is None:
        return []
    facts = {"path": path}
    if not head.truncated:
        return [RawItem(kind, _text(head.data), head.source or path, facts)]
    whole = host.locate(path, max_bytes=_MOST_FILE_BYTES, suffix="log")
    items = [RawItem(kind, whole.data, whole.source or path, facts, whole.file)]
    if whole.truncated:
        end = host.read(path, max_bytes=_MOST_FILE_BYTES, tail=True)
        items.append(RawItem(kind, end.data, end.source or path, facts))
        raw.problems.append(f"{path}: the bundle holds its beginning and its end only.")
    return items


def _packed(host: Host, path: str) -> list[RawItem]:
    reply = host.read(path, max_bytes=_PACKED_BYTES, suffix="bin")
    if not is_packed_log(reply.data):
        return []
    return [RawItem("log", reply.data, reply.source or path, {"path": path, "packed": True, "cut": reply.truncated})]


def _text(data: bytes) -> bytes:
    """What a host gave, in UTF-8. The host frees UTF-8 of secrets; what was in another encoding is freed here."""
    text = as_utf8(data)
    return text if text == data else redact_bytes(text)


def _kind(data: bytes) -> str | None:
    if len(data) <= _HEAD_BYTES and parse_error_file(data):
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
