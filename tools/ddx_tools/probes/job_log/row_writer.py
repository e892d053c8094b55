"""Builds rows of `log_events` from what the readers of a log found.

Rows only carry ranks that the text or the file name states; `ddx_tools.analysis.log_events.attribution` infers the rest
from several rows.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.log_events.log_event import is_kernel_message
from ddx_tools.knowledge.known_messages import SignatureMatch
from ddx_tools.model.signals import signal_name
from ddx_tools.parsers.logs.launcher_words import LauncherEvent
from ddx_tools.parsers.logs.log_lines import FileIdentity, LogLine
from ddx_tools.parsers.logs.log_prefixes import seconds_without_year
from ddx_tools.parsers.logs.torchrun import FailureBlock
from ddx_tools.parsers.python.fatal_stack import FatalStack
from ddx_tools.parsers.python.python_traceback import parse_traceback
from ddx_tools.parsers.python.traceback_parts import Traceback, TracebackFrame

Row = dict[str, Any]

TEXT_LIMIT = 4_000
QUOTE_LIMIT = 600
_ROW_LIMIT = 50_000
_ALIKE_LIMIT = 100
_CAUSE_FRAMES = 30
_TELLERS = ("reporter", "own_rank")
"""The named groups of signatures that hold the reporting rank."""


@dataclass
class _Alike:
    """Rows of one process with the same content."""

    first: list[Row] = field(default_factory=list)
    last: deque[Row] = field(default_factory=deque)

    def add(self, row: Row, has_room: bool) -> bool:
        """Add a row to the first or the last hundred; return whether the number of kept rows grew.

        If both are full or there is no room, the row replaces the oldest of the last ones. It is dropped if there are
        none.
        """
        if has_room and len(self.first) < _ALIKE_LIMIT:
            self.first.append(row)
            return True
        grows = has_room and len(self.last) < _ALIKE_LIMIT
        if not grows and self.last:
            self.last.popleft()
        elif not grows:
            return False
        self.last.append(row)
        return grows


class RowWriter:
    """Collects the rows of one log.

    Of similar rows of one process (a warning at every step), only the first and the last hundred are kept.
    """

    def __init__(self, source: str, identity: FileIdentity, host: str | None) -> None:
        self._source = source
        self._identity = identity
        self._host = host
        self._alike: dict[tuple[Any, ...], _Alike] = {}
        self._count = 0

    def rows(self) -> list[Row]:
        """Return all rows, in line order."""
        rows = [row for alike in self._alike.values() for row in (*alike.first, *alike.last)]
        return sorted(rows, key=lambda row: (row["source_line"], row["kind"]))

    def traceback(self, line: LogLine, traceback: Traceback, **details: Any) -> None:
        """Add the row of a traceback; `line` names its exception."""
        self._row(
            "traceback",
            line,
            traceback.exception,
            traceback.message,
            **user_place(traceback.user_frame),
            frames=_json(frame_names(traceback.frames)),
            details={**traceback_details(traceback), **details},
        )

    def fatal(self, line: LogLine, fatal: FatalStack) -> None:
        """Add the row of an interpreter's fatal error."""
        main = fatal.main_thread
        self._row(
            "fatal_stack",
            line,
            fatal.signal,
            fatal.reason,
            **user_place(fatal.user_frame),
            frames=_json(frame_names(reversed(main.frames) if main else ())),
            details={"threads": len(fatal.threads)},
        )

    def summary(self, block: FailureBlock) -> None:
        """Add a row for each failure in a launcher's summary."""
        for failure in block.failures:
            line = LogLine(failure.line, failure.raw, failure.raw)
            raised = parse_traceback("\n".join(failure.text))
            killed_by = signal_name(-failure.exit_code) if failure.exit_code and failure.exit_code < 0 else None
            self._row(
                "failure_summary",
                line,
                killed_by,
                "\n".join(failure.text).strip(),
                rank=failure.rank,
                pid=failure.pid,
                exit_code=failure.exit_code,
                time_s=failure.time_s,
                **user_place(raised.user_frame if raised else None),
                details={
                    "exception": raised.exception if raised else None,
                    "message": raised.message[:QUOTE_LIMIT] if raised else None,
                    "causes": _causes(raised) if raised else None,
                    "local_rank": failure.local_rank,
                    "node": failure.host,
                    "error_file": failure.error_file,
                    "first_observed": failure.is_first_observed,
                    "number": failure.number,
                    "title": block.title,
                },
            )

    def event(self, line: LogLine, event: LauncherEvent) -> None:
        """Add a row for each task that a launcher's message names."""
        killed_by = signal_name(-event.exit_code) if event.exit_code and event.exit_code < 0 else None
        for task in event.tasks or (None,):
            details = {
                "event": event.kind,
                "local_rank": event.local_rank,
                "process_index": event.index,
                "task": task,
                "node": event.host,
            }
            self._row(
                "exit",
                line,
                event.signal or killed_by,
                line.text,
                rank=event.rank,
                pid=event.pid,
                exit_code=event.exit_code,
                details=details,
            )

    def signature(self, line: LogLine, match: SignatureMatch) -> None:
        """Add the row of a known message."""
        group = {"group": line.group} if line.group else {}
        known = match.signature
        tellers = _TELLERS if line.group in (None, "0") else ()  # other groups count their own members
        teller = next((int(match.groups[name]) for name in tellers if name in match.groups), None)
        rank = _first(line.rank, teller, self._identity.rank)
        undated = line.time_s is None and is_kernel_message(known.kind, known.id)
        in_year_s = seconds_without_year(line.raw[:QUOTE_LIMIT]) if undated else None
        self._row(
            known.kind, line, known.id, line.text, rank=rank, details={**group, **match.groups, "in_year_s": in_year_s}
        )

    def step(self, line: LogLine, details: Row) -> None:
        """Add the row of a line that reports progress."""
        rank = _first(line.rank, details.pop("stated_rank"), self._identity.rank)
        known = {name: value for name, value in details.items() if value is not None}
        self._row("step", line, None, line.text, rank=rank, details=known)

    def value(self, line: LogLine, details: Row) -> None:
        """Add the row of a value that ranks can be compared by."""
        rank = _first(line.rank, details.pop("stated_rank"), self._identity.rank)
        self._row("value", line, details["what"], line.text, rank=rank, details=details)

    def _row(self, kind: str, at: LogLine, code: str | None, text: str, **more: Any) -> None:
        details = {"local_rank": _first(at.local_rank, self._identity.local_rank), "stream": at.stream.strip()}
        details.update(quote=at.raw.strip()[:QUOTE_LIMIT], **more.pop("details", {}))
        row = {
            "host": at.host or self._host,
            "rank": _first(at.rank, self._identity.rank),
            "pid": _first(at.pid, self._identity.pid),
            "kind": kind,
            "code": code,
            "text": text[:TEXT_LIMIT],
            "attempt": self._identity.attempt,
            "time_s": at.time_s,
            "source": self._source,
            "source_line": at.number,
            **more,
        }
        row["details"] = _json({key: value for key, value in details.items() if value not in (None, "")})
        self._keep(row, at.stream)

    def _keep(self, row: Row, stream: str) -> None:
        key = (row["kind"], row["code"], row.get("file"), row.get("line"), row["rank"], row["pid"], stream)
        has_room = self._count < _ROW_LIMIT
        alike = self._alike.setdefault(key, _Alike()) if has_room else self._alike.get(key)
        if alike:
            self._count += alike.add(row, has_room)


def traceback_details(traceback: Traceback) -> dict[str, Any]:
    """Return the details of a traceback's row, beyond its columns."""
    return {
        "first_line": traceback.origin.line,
        "last_line": traceback.last_line,
        "is_cut": traceback.is_cut or None,
        "is_mixed": traceback.is_mixed or None,
        "relation": traceback.relation,
        "causes": _causes(traceback),
    }


def _causes(traceback: Traceback) -> list[dict[str, Any]] | None:
    causes = [
        {
            **user_place(cause.user_frame),
            "exception": cause.exception,
            "message": cause.message[:QUOTE_LIMIT],
            "source_line": cause.raw_line,
            "frames": frame_names(cause.frames[-_CAUSE_FRAMES:]),
            "relation": cause.relation,
        }
        for cause in traceback.before
    ]
    return causes or None


def user_place(frame: TracebackFrame | None) -> dict[str, Any]:
    """Return the columns of a place in the program."""
    if frame is None:
        return {}
    return {"file": frame.file, "line": frame.line, "function": frame.function or None, "code_line": frame.code or None}


def frame_names(frames: Iterable[TracebackFrame]) -> list[str]:
    """Return frames in the form of the column `frames`."""
    return [f"{frame.file}:{frame.line} {frame.function}".rstrip() for frame in frames]


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
