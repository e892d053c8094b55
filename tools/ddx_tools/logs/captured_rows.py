"""From the captured parts of logs to rows of `log_events`."""

from __future__ import annotations

from ddx_tools.formats.error_file import parse_error_file
from ddx_tools.formats.log_lines import file_identity
from ddx_tools.logs.error_rows import error_file_row
from ddx_tools.logs.packed import opened
from ddx_tools.logs.scan import JobLog
from ddx_tools.parsers.lines.stream import read_lines
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows


def log_rows(raw: Raw) -> Rows:
    """Rows of `logs` and `log_events`. What of a log could not be read is added to the problems of the capture."""
    return merge_rows(_item_rows(item, raw) for item in raw.items)


def _item_rows(item: RawItem, raw: Raw) -> Rows:
    path, host = item.facts["path"], raw.known_host
    identity = file_identity(path)
    if item.kind == "error_file":
        content = parse_error_file(item.data)
        return {"log_events": [error_file_row(content, item.source, identity, host)] if content else []}
    log = JobLog(item.source, identity, host)
    with item.open() as stream:
        packed = opened(item.data) if item.facts.get("packed") else None
        reading = read_lines(packed or stream, [log])
    is_cut = item.facts.get("cut", False) or reading.problem is not None
    if is_cut:
        reason = reading.problem or f"only the first {len(item.data) >> 20} MiB of it were taken"
        raw.problems.append(f"{path}: its end is not known ({reason}). Unpack it, and name what comes out.")
    rows = log.rows()
    if log.left_out:
        raw.problems.append(
            f"{path}: {log.left_out:,} of its lines were only counted: what they say was read many times in others."
        )
    return {
        "logs": [{"host": host, "path": path, "cut": is_cut, "source": item.source}],
        "log_events": rows,
    }
