"""Rows of the files that ranks write about their own end."""

from __future__ import annotations

import json
from typing import Any

from ddx_tools.logs.row_writer import TEXT_LIMIT, Row, frame_names, traceback_details, user_place
from ddx_tools.parsers.logs.log_lines import FileIdentity
from ddx_tools.parsers.python.error_file import ErrorFile, ExitNote


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
