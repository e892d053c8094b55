"""From the captured parts of logs to rows of `log_events`."""

from __future__ import annotations

import json
from typing import Any

from ddx_tools.logs.row_writer import TEXT_LIMIT, Row, frame_names, traceback_details, user_place
from ddx_tools.parsers.logs.log_lines import FileIdentity, file_identity
from ddx_tools.parsers.python.error_file import ErrorFile, ExitNote, parse_error_file
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows
from ddx_tools.sources.intake import read_lines_of
from ddx_tools.sources.kinds import plain_name


def log_rows(raw: Raw) -> Rows:
    """Rows of `logs` and `log_events`. What of a log could not be read is added to the problems of the capture."""
    read_lines_of(raw)
    return merge_rows(_item_rows(item, raw) for item in raw.items)


def _item_rows(item: RawItem, raw: Raw) -> Rows:
    path, host = item.facts["path"], raw.known_host
    if item.kind == "error_file":
        content = parse_error_file(item.data)
        identity = file_identity(plain_name(path))
        return {"log_events": [error_file_row(content, item.source, identity, host)] if content else []}
    log = item.facts["lines"]
    rows = log.rows()
    if log.left_out:
        raw.problems.append(
            f"{path}: {log.left_out:,} of its lines were only counted: what they say was read many times in others."
        )
    return {"logs": [{"host": host, "path": path, "cut": item.facts["cut"], "source": item.source}], "log_events": rows}


# --- rows of the files that ranks write about their own end


def error_file_row(content: ErrorFile | ExitNote, source: str, identity: FileIdentity, host: str | None) -> Row:
    """The row of an error file or of a rank's exit note."""
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
