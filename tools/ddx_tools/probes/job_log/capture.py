"""Finds a job's log files and turns them into rows. The logs are read in place, when rows are made."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Sequence
from typing import Any

from ddx_tools.knowledge.prose import prose_lines
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError
from ddx_tools.model.files.log_text import LINE_BYTES, as_utf8
from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.job_files import error_file_of, may_be_file, outputs_of
from ddx_tools.parsers.logs.log_lines import FileIdentity, file_identity
from ddx_tools.parsers.python.error_file import ErrorFile, ExitNote, parse_error_file
from ddx_tools.probes.declaration import ProbeArgs
from ddx_tools.probes.job_log.row_writer import TEXT_LIMIT, Row, frame_names, traceback_details, user_place
from ddx_tools.probes.job_log.runs import mark_other_runs
from ddx_tools.probes.job_log.scan import JobLog
from ddx_tools.redaction.text import redact_bytes
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import Intake, intake_of, read_lines_of
from ddx_tools.sources.job_target import job_on
from ddx_tools.sources.kinds import TextKind, is_log_name, plain_name
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows

_FILES_LIMIT = 2_000
_ERROR_FILE = re.compile(r"(/.{1,4000})/attempt_\d+/\d+/error\.json$")
_WHY = "What this log says about the ranks is unknown."


def capture_logs(host: Host, args: ProbeArgs) -> Raw:
    """Capture all logs among the target; leave other files to other probes."""
    raw = Raw(host.name)
    paths = args.paths or _paths_of_live_job(host, args.target, raw)
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    files = taken.of(TextKind.LOG, TextKind.ERROR_FILE)
    if len(files) > _FILES_LIMIT:
        raw.problems.append(
            f"{len(files)} files: {_FILES_LIMIT} were read, first those named like logs, then the newest. Name a "
            "smaller directory."
        )
        raw.status = ProbeStatus.PARTIAL
        files = sorted(heapq.nlargest(_FILES_LIMIT, files, key=_promise), key=files.index)
    for material in files:
        try:
            raw.items += _items(raw, taken, material)
        except HostError as error:
            raw.failed(material.path, error, _WHY)
    raw.problems += [
        f"{material.path}: not a text log; left to the probes that read dumps."
        for material in taken.materials
        if material.named and not material.error and not material.kinds
    ]
    raw.searched.append(f"{len(files)} logs and error files among {len(taken.materials)} files")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _promise(log: Material) -> tuple[bool, bool, int]:
    """A sort key: if there are too many files, those with larger keys are read first."""
    is_log = TextKind.ERROR_FILE in log.kinds or is_log_name(log.path)
    return log.named, is_log, log.written_ns or 0


def _items(raw: Raw, taken: Intake, log: Material) -> list[RawItem]:
    """The log, whose lines are read later; or its beginning and end, if a bundle kept no more.

    Raises HostError.
    """
    if log.damaged:
        raw.problems.append(f"{log.path}: its end is unknown. Unpack it, then name the unpacked file.")
    facts = {"path": log.path, "cut": log.damaged}
    if TextKind.ERROR_FILE in log.kinds:
        return [RawItem("error_file", _text(log.head), log.source, facts)]
    parts = taken.whole(log)
    if log.why_not:
        raw.problems.append(f"{log.path}: {log.why_not}.")
    identity = file_identity(plain_name(log.path))
    prose = prose_lines(log.head.decode("utf-8", "replace")) if TextKind.NOTE in log.kinds else frozenset[int]()
    items = []
    for part in parts:
        lines = JobLog(part.source, identity, raw.known_host, prose)
        part.wanted_by.append(lines)
        items.append(RawItem("log", b"", part.source, {**facts, "lines": lines}))
    return items


def _text(data: bytes) -> bytes:
    """The host's bytes as UTF-8. The host redacts secrets in UTF-8; other encodings are redacted here."""
    text = as_utf8(data)
    return text if text == data else redact_bytes(text)


# --- a live job


def _paths_of_live_job(host: Host, target: Sequence[str], raw: Raw) -> list[str]:
    """The files that the job's output goes to, and its `ddx run` directory."""
    job = job_on(host, target)
    outputs = list(dict.fromkeys(outputs_of(job.members)))
    files = [path for path in outputs if may_be_file(path)]
    raw.searched.append(f"the output of {job.id}: {', '.join(outputs[:8]) or 'unknown'}")
    if outputs and not files:
        raw.problems.append(
            f"The output of {job.id} is not written to a file ({', '.join(outputs[:3])}), so its log cannot be read. "
            "Start it with `ddx run -- …`, or redirect its output to a file."
        )
    processes = [member.process for member in job.members if member.process]
    directories = {process.env.get("DDX_RUN_DIR") or _log_directory(process) for process in processes}
    return sorted(path for path in directories if path) + files


def _log_directory(process: Process) -> str | None:
    """The directory where torchrun keeps a run's files; error files are in <attempt>/<local rank>/."""
    found = _ERROR_FILE.match(error_file_of(process))
    return found[1] if found else None


# --- turning captured parts of logs into rows of `log_events`


def log_rows(raw: Raw) -> Rows:
    """Return the rows of `logs` and `log_events`. Unread parts of logs are added to the capture's problems."""
    read_lines_of(raw)
    rows = merge_rows(_item_rows(item, raw) for item in raw.items)
    logs = {item.source: item.facts["path"] for item in raw.items if item.kind != "error_file"}
    facts = {item.source: item.facts["lines"].facts for item in raw.items if item.kind != "error_file"}
    others = mark_other_runs(rows.get("log_events", []), logs, facts)
    for row in rows.get("logs", []):
        row.update(others.of_log[row["source"]])
    raw.problems += others.problems
    return rows


def _item_rows(item: RawItem, raw: Raw) -> Rows:
    path, host = item.facts["path"], raw.known_host
    if item.kind == "error_file":
        content = parse_error_file(item.data)
        identity = file_identity(plain_name(path))
        return {"log_events": [error_file_row(content, item.source, identity, host)] if content else []}
    log: JobLog = item.facts["lines"]
    rows = log.rows()
    if log.left_out:
        raw.problems.append(f"{path}: {log.left_out:,} of its lines were only counted, as they repeat other lines.")
    if log.too_long:
        lines = "1 of its lines is" if log.too_long == 1 else f"{log.too_long:,} of its lines are"
        raw.problems.append(f"{path}: {lines} longer than {LINE_BYTES >> 10} KiB; the rest of each was not read.")
    return {"logs": [{"host": host, "path": path, "cut": item.facts["cut"], "source": item.source}], "log_events": rows}


# --- rows from the files that ranks write about their own end


def error_file_row(content: ErrorFile | ExitNote, source: str, identity: FileIdentity, host: str | None) -> Row:
    """Return the row of an error file or a rank's exit note."""
    row: dict[str, Any] = {
        "host": content.host or host,
        "rank": content.rank if content.rank is not None else identity.rank,
        "pid": content.pid,
        "attempt": identity.attempt,
        "time_s": content.time_s,
        "source": source,
        "source_line": 1,
    }
    details: dict[str, Any] = {"local_rank": identity.local_rank}
    if isinstance(content, ExitNote):
        words = "after an exception" if content.failed else "by itself"
        row.update(kind="exit", code=None, text=f"the interpreter of rank {content.rank} ended {words}")
        row["exit_code"] = content.asked_code
        details.update(event="note", failed=content.failed)
        details["last_call"] = [
            user_place(frame) for frame in content.last_call if frame.function != "<module>"
        ] or None
        if content.traceback:
            row.update(user_place(content.traceback.user_frame))
    else:
        row.update(kind="error_file", code=content.exception, text=content.message[:TEXT_LIMIT])
        details["quote"] = f"{content.exception}: {content.message}"[:600]
        if content.traceback:
            row.update(user_place(content.traceback.user_frame))
            row["frames"] = json.dumps(frame_names(content.traceback.frames))
            details.update(traceback_details(content.traceback))
    row["details"] = json.dumps({key: value for key, value in details.items() if value is not None})
    return row
