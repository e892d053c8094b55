"""Reads the files that a rank leaves when it raises or exits.

torchrun's error file (TORCHELASTIC_ERROR_FILE, written under @record only; torch 1.9 to 2.15,
torch/distributed/elastic/multiprocessing/errors/error_handler.py):

    {"message": {"message": "KeyError: 2", "extraInfo": {"py_callstack": "…", "timestamp": "1795238020"}}}

and the notes of the rank agent (`ddx_tools.payloads.rank_agent`): `rank-3.4242.exception.json`, whose
`reason` holds `type`, `message` and `traceback`, and `rank-3.4242.exit.json`, left by an interpreter that
ended by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ddx_tools.model.user_frames import is_user_file
from ddx_tools.parsers.plain_json import read_object, whole
from ddx_tools.parsers.python.python_traceback import parse_traceback
from ddx_tools.parsers.python.traceback_parts import Traceback, TracebackFrame

_TEXT_LIMIT = 64_000


@dataclass(frozen=True)
class ErrorFile:
    """An exception that a rank wrote to a file."""

    exception: str
    message: str
    traceback: Traceback | None
    time_s: float | None
    rank: int | None = None
    pid: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class ExitNote:
    """A note that a rank's interpreter ended by itself; `failed` if an exception reached the top level."""

    rank: int
    pid: int
    failed: bool
    time_s: float | None
    host: str | None
    traceback: Traceback | None = None
    """The frames where it called sys.exit, if it did."""
    last_call: tuple[TracebackFrame, ...] = ()
    """The program's frames at the last collective, innermost first, if a process group still existed."""

    @property
    def asked_code(self) -> int | None:
        """Return the exit code (0 to 255) with which the rank called `sys.exit`.

        None if it made no such call or asked for success. The process may have ended otherwise, if it was killed before
        it exited.
        """
        words = self.traceback.message.strip() if self.traceback else ""
        if words in ("", "None", "0", "False"):
            return None
        return int(words) % 256 if re.fullmatch(r"-?\d{1,9}", words) else 1


def parse_error_file(data: bytes) -> ErrorFile | ExitNote | None:
    """Return the content of an error file or exit note; None for other bytes."""
    document = read_object(data)
    if isinstance(document.get("reason"), dict) and document["reason"].get("kind") == "exception":
        return _agent_exception(document, document["reason"])
    if isinstance(document.get("rank"), int) and isinstance(document.get("failed"), bool):
        nanoseconds = document.get("at_ns")
        return ExitNote(
            document["rank"],
            whole(document.get("pid")) or 0,
            document["failed"],
            nanoseconds / 1e9 if isinstance(nanoseconds, int) else None,
            _text(document.get("host")) or None,
            parse_traceback(_text(document.get("left_at"))),
            _program_frames(document.get("last_call")),
        )
    return _elastic(document.get("message")) if set(document) <= {"message"} else None


def _program_frames(told: Any) -> tuple[TracebackFrame, ...]:
    frames = [frame for frame in told if isinstance(frame, list) and len(frame) == 3] if isinstance(told, list) else []
    known = (TracebackFrame(_text(file), whole(line) or 0, _text(function)) for file, line, function in frames[:100])
    return tuple(frame for frame in known if is_user_file(frame.file))


def _agent_exception(document: dict[str, Any], reason: dict[str, Any]) -> ErrorFile:
    nanoseconds = document.get("taken_at_ns")
    return ErrorFile(
        _text(reason.get("type")),
        _text(reason.get("message")),
        parse_traceback(_text(reason.get("traceback"))),
        nanoseconds / 1e9 if isinstance(nanoseconds, int) else None,
        whole(document.get("rank")),
        whole(document.get("pid")),
        _text(document.get("host")) or None,
    )


def _elastic(message: Any) -> ErrorFile | None:
    if isinstance(message, str):  # old and foreign writers
        exception, _, rest = message.partition(": ")
        return ErrorFile(exception[:300], rest[:_TEXT_LIMIT], None, None)
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    exception, _, rest = message["message"][:_TEXT_LIMIT].partition(": ")
    stamp = str(extra.get("timestamp", ""))
    return ErrorFile(
        exception[:300],
        rest,
        parse_traceback(_text(extra.get("py_callstack"))),
        float(stamp) if stamp.isdecimal() and len(stamp) < 15 else None,
    )


def _text(value: Any) -> str:
    return value[:_TEXT_LIMIT] if isinstance(value, str) else ""
