"""One log file → rows of `log_events`.

Every line goes to the readers of its stream, that is, of the process whose labels it bears; a reader that
takes a line for its own keeps it from the others. The ranks that rows carry are those that the text or the
file's name states; what follows from several rows together is for `ddx_tools.logs.identity`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ddx_tools.formats.fatal_stack import FatalStack, FatalStackReader
from ddx_tools.formats.log_lines import FileIdentity, LogLine, read_lines
from ddx_tools.formats.progress import Progress, parse_progress
from ddx_tools.formats.python_traceback import Frame, Traceback, TracebackReader, parse_traceback
from ddx_tools.formats.signatures import SignatureMatch, match_signatures
from ddx_tools.formats.torchrun import (
    FailureBlock,
    FailureBlockReader,
    LauncherEvent,
    launcher_event,
    signal_name,
)

Row = dict[str, Any]

TEXT_LIMIT = 4_000
QUOTE_LIMIT = 600
_STREAM_LIMIT = 20_000
_ROW_LIMIT = 50_000
_CAUSE_FRAMES = 30
_ASIDE = re.compile(r"Exception in thread |Exception ignored (?:in|on)\b|Exception ignored in:")
_TELLERS = ("reporter", "own_rank")
"""Named groups of signatures that hold the rank that speaks."""


@dataclass
class _Stream:
    """One process's lines: its readers, what it said last of its progress, and who it is."""

    first: LogLine
    traceback: TracebackReader = field(default_factory=TracebackReader)
    fatal: FatalStackReader = field(default_factory=FatalStackReader)
    summary: FailureBlockReader = field(default_factory=FailureBlockReader)
    progress: tuple[LogLine, Progress] | None = None
    aside: int | None = None
    """Line that announced a traceback which ends no process: of a helper thread, or ignored."""
    process_index: int | None = None
    """Of mp.spawn, for the traceback that comes next."""


def scan_log(stream: BinaryIO, source: str, identity: FileIdentity, host: str | None) -> list[Row]:
    """Rows of one log, in the order of their lines; at most 50,000: beyond them nothing new is said."""
    scan = _Scan(source, identity, host)
    for line in read_lines(stream):
        scan.take(line)
        if len(scan.rows) >= _ROW_LIMIT:
            break
    return scan.finish()


class _Scan:
    def __init__(self, source: str, identity: FileIdentity, host: str | None) -> None:
        self.rows: list[Row] = []
        self._source = source
        self._identity = identity
        self._host = host
        self._streams: dict[str, _Stream] = {}
        self._failed_at: list[tuple[int | None, int]] = []
        """(agent, line) of each time that an agent saw its ranks fail."""

    def take(self, line: LogLine) -> None:
        stream = self._streams.get(line.stream)
        if stream is None:
            if len(self._streams) >= _STREAM_LIMIT:
                return
            stream = self._streams[line.stream] = _Stream(line)
        in_summary, block = stream.summary.feed(line)
        if block:
            self._add_summary(block)
        if in_summary:
            return
        in_fatal, fatal = stream.fatal.feed(line)
        if fatal:
            self._add_fatal(stream, fatal)
        if in_fatal:
            return
        for traceback in stream.traceback.feed(line):
            self._add_traceback(stream, traceback)
        if _ASIDE.match(line.text):
            stream.aside = line.number
        self._take_line(stream, line)

    def finish(self) -> list[Row]:
        for stream in self._streams.values():
            if block := stream.summary.close():
                self._add_summary(block)
            if fatal := stream.fatal.close():
                self._add_fatal(stream, fatal)
            for traceback in stream.traceback.close():
                self._add_traceback(stream, traceback)
            if stream.progress:
                self._add_progress(*stream.progress)
        self._number_attempts()
        return sorted(self.rows, key=lambda row: (row["source_line"], row["kind"]))

    def _number_attempts(self) -> None:
        """An agent that saw its ranks fail several times restarted them in between, without a word of it."""
        ends = [line for _, line in self._failed_at]
        if len(ends) < 2 or len({agent for agent, _ in self._failed_at}) > 1 or self._identity.attempt is not None:
            return
        for row in self.rows:
            row["attempt"] = min(sum(1 for end in ends if end < row["source_line"]), len(ends) - 1)

    def _take_line(self, stream: _Stream, line: LogLine) -> None:
        if event := launcher_event(line.text):
            if event.kind == "spawn_raised":
                stream.process_index = event.index
            else:
                self._add_event(line, event)
        for match in match_signatures(line.text):
            self._add_signature(line, match)
        if not stream.traceback.is_open and (progress := parse_progress(line.text)):
            stream.progress = (line, progress)

    # --- rows -----------------------------------------------------------------------------------------------

    def _row(self, kind: str, at: LogLine, code: str | None, text: str, **more: Any) -> Row:
        details = {
            "local_rank": _first(at.local_rank, self._identity.local_rank),
            "stream": at.stream.strip(),
        }
        details.update(quote=at.raw.strip()[:QUOTE_LIMIT], **more.pop("details", {}))
        row = {
            "host": self._host,
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
        self.rows.append(row)
        return row

    def _add_traceback(self, stream: _Stream, traceback: Traceback) -> None:
        line = _with_number(stream.first, traceback.raw_line, traceback.raw)
        index, stream.process_index = stream.process_index, None
        self._row(
            "traceback",
            line,
            traceback.exception,
            traceback.message,
            **user_place(traceback.user_frame),
            frames=_json(frame_names(traceback.frames)),
            details={**traceback_details(traceback), "process_index": index, "aside": _is_aside(stream, traceback)},
        )

    def _add_fatal(self, stream: _Stream, fatal: FatalStack) -> None:
        main = fatal.main_thread
        self._row(
            "fatal_stack",
            _with_number(stream.first, fatal.line, fatal.raw),
            fatal.signal,
            fatal.reason,
            **user_place(fatal.user_frame),
            frames=_json(frame_names(reversed(main.frames) if main else ())),
            details={"threads": len(fatal.threads)},
        )

    def _add_summary(self, block: FailureBlock) -> None:
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
                    "title": block.title,
                },
            )

    def _add_event(self, line: LogLine, event: LauncherEvent) -> None:
        killed_by = signal_name(-event.exit_code) if event.exit_code and event.exit_code < 0 else None
        self._row(
            "exit",
            line,
            event.signal or killed_by,
            line.text,
            rank=None,
            pid=event.pid,
            exit_code=event.exit_code,
            details={"event": event.kind, "local_rank": event.local_rank, "process_index": event.index},
        )
        if event.kind == "failed":
            self._failed_at.append((line.writer, line.number))

    def _add_signature(self, line: LogLine, match: SignatureMatch) -> None:
        group = {"group": line.group} if line.group else {}
        known = match.signature
        teller = next((int(match.groups[name]) for name in _TELLERS if name in match.groups), None)
        rank = _first(line.rank, teller, self._identity.rank)
        self._row(known.kind, line, known.id, line.text, rank=rank, details={**group, **match.groups})

    def _add_progress(self, line: LogLine, progress: Progress) -> None:
        details = {"step": progress.step, "total": progress.total, "loss": progress.loss}
        self._row("step", line, None, line.text, details=details)


def traceback_details(traceback: Traceback) -> dict[str, Any]:
    """What a row says of a traceback beside its columns."""
    return {
        "first_line": traceback.origin.line,
        "last_line": traceback.last_line,
        "is_cut": traceback.is_cut or None,
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


def user_place(frame: Frame | None) -> dict[str, Any]:
    """The columns of a place in the program."""
    if frame is None:
        return {}
    return {
        "file": frame.file,
        "line": frame.line,
        "function": frame.function or None,
        "code_line": frame.code or None,
    }


def frame_names(frames: Iterable[Frame]) -> list[str]:
    """Frames as the column `frames` holds them."""
    return [f"{frame.file}:{frame.line} {frame.function}".rstrip() for frame in frames]


def _with_number(first: LogLine, number: int, raw: str) -> LogLine:
    """A line of the stream that `first` belongs to; lines without labels may be anybody's."""
    if not first.stream:
        return LogLine(number, raw, raw)
    return LogLine(number, raw, raw, first.stream, first.rank, first.local_rank, None, first.pid)


def _is_aside(stream: _Stream, traceback: Traceback) -> bool | None:
    """Whether the line above a traceback says that it ends no process."""
    return True if stream.aside is not None and 0 < traceback.origin.line - stream.aside <= 2 else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
