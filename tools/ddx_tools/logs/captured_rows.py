"""From the captured parts of logs to rows of `log_events`."""

from __future__ import annotations

import io

from ddx_tools.formats.error_file import parse_error_file
from ddx_tools.formats.log_lines import file_identity
from ddx_tools.logs.error_rows import error_file_row
from ddx_tools.logs.scan import scan_log
from ddx_tools.probe import Raw, RawItem, Rows, merge_rows
from ddx_tools.sources.kinds import plain_name


def log_rows(raw: Raw) -> Rows:
    """Rows of `logs` and `log_events`."""
    return merge_rows(_item_rows(item, raw.known_host) for item in raw.items)


def _item_rows(item: RawItem, host: str | None) -> Rows:
    identity = file_identity(plain_name(item.facts["path"]))
    if item.kind == "error_file":
        content = parse_error_file(item.data)
        return {"log_events": [error_file_row(content, item.source, identity, host)] if content else []}
    first_line = item.facts.get("first_line", 1)
    return {
        "logs": [
            {
                "host": host,
                "path": item.facts["path"],
                "first_line": first_line,
                "cut": item.facts.get("cut", False),
                "source": item.source,
            }
        ],
        "log_events": scan_log(io.BytesIO(item.data), item.source, identity, host, first_line=first_line),
    }
