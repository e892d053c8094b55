"""How the process of a core file ended, as a row of `log_events`: like a fatal error that an interpreter printed."""

from __future__ import annotations

import json
from typing import Any

from ddx_tools.model.user_frames import is_user_file
from ddx_tools.parsers.python.pystack_text import PystackProcess, parse_pystack
from ddx_tools.probes.stacks.dump_files import is_worker
from ddx_tools.sources.raw import Raw, RawItem


def death_rows(raw: Raw, item: RawItem) -> list[dict[str, Any]]:
    """Return the row for the dead process that a core file belongs to, at most one.

    `item` has the stacks that pystack read from the core. A data-loader worker gives no row, since it is not a rank.
    """
    processes = parse_pystack(item.data.decode("utf-8", "replace"))
    mine = [process for process in processes if process.died and process.pid == item.facts["pid"]]
    return [_row(raw, item, process) for process in mine[:1] if not any(map(is_worker, process.threads))]


def _row(raw: Raw, item: RawItem, process: PystackProcess) -> dict[str, Any]:
    thread = process.where
    frames = [frame for frame in thread.frames if frame.line] if thread else []
    place = next((frame for frame in frames if is_user_file(frame.file)), None)
    details = {"quote": process.says, "threads": len(process.threads), "core": True, "sent_by": process.sent_by}
    row = {
        "host": item.facts.get("host") or raw.known_host,
        "rank": item.facts["rank"],
        "pid": process.pid or None,
        "kind": "fatal_stack",
        "code": process.signal,
        "text": process.says if process.signal else f"segmentation fault or bus error at {process.says.split()[-1]}",
        "superseded": False,
        "frames": json.dumps([f"{frame.file}:{frame.line} {frame.function}" for frame in reversed(frames)]),
        "details": json.dumps({name: value for name, value in details.items() if value is not None}),
        "source": item.source,
        "source_line": item.facts["above"] + process.says_at,
    }
    if place:
        row |= {"file": place.file, "line": place.line, "function": place.function, "code_line": place.code or None}
    return row
