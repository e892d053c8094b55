"""From the captured parts of logs to rows of `log_events`."""

from __future__ import annotations

from ddx_tools.logs.error_rows import error_file_row
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.parsers.python.error_file import parse_error_file
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
    return {
        "logs": [{"host": host, "path": path, "cut": item.facts["cut"], "source": item.source}],
        "log_events": rows,
    }
