"""Reads py-spy's JSON stack dumps (py-spy 0.4, `dump --json --full-filenames`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.stack_frame import Frame

_THREAD_LIMIT = 2_000
_FRAME_LIMIT = 1_000
_TEXT_LIMIT = 500
_VARIABLES_LIMIT, _VARIABLE_LIMIT = 60, 120
_LINE_LIMIT, _ID_LIMIT = 1 << 31, 1 << 63  # the limits of the evidence store's columns


@dataclass(frozen=True)
class ThreadStack:
    """One thread of a dump; frames innermost first."""

    pid: int
    tid: int
    name: str
    running: bool
    owns_gil: bool
    frames: tuple[Frame, ...]

    @property
    def is_main(self) -> bool:
        """Whether it is the interpreter's main thread: on Linux, its kernel id is the pid."""
        return self.name == "MainThread" or self.tid == self.pid


def parse_pyspy(data: bytes) -> list[ThreadStack]:
    """Return the threads of a dump. Raises `UnreadableInput` if the bytes are not a py-spy JSON dump."""
    try:
        threads = json.loads(data)
        if not isinstance(threads, list):
            raise TypeError("the top level is not a list")
        return [_thread(item) for item in threads[:_THREAD_LIMIT]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableInput(
            f"not a py-spy dump ({str(error)[:120]})", "Take one: py-spy dump --json --pid PID"
        ) from error


def _thread(item: dict[str, object]) -> ThreadStack:
    frames = item["frames"]
    if not isinstance(frames, list):
        raise TypeError("frames is not a list")
    return ThreadStack(
        pid=_whole(item.get("pid"), _LINE_LIMIT),
        tid=_whole(item.get("os_thread_id") or item.get("thread_id"), _ID_LIMIT),
        name=_text(item.get("thread_name")),
        running=bool(item.get("active")),
        owns_gil=bool(item.get("owns_gil")),
        frames=tuple(_frame(frame) for frame in frames[:_FRAME_LIMIT]),
    )


def _frame(item: dict[str, object]) -> Frame:
    return Frame(
        _text(item.get("filename")),
        _whole(item.get("line"), _LINE_LIMIT),
        _text(item.get("name")),
        _variables(item.get("locals")),
    )


def _variables(listed: object) -> tuple[tuple[str, str], ...]:
    known = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return tuple(
        (_text(item.get("name")), _text(item.get("repr"))[:_VARIABLE_LIMIT]) for item in known[:_VARIABLES_LIMIT]
    )


def _text(value: object) -> str:
    """The value as bounded text, without lone surrogates, which JSON can contain but UTF-8 cannot."""
    return str(value or "")[:_TEXT_LIMIT].encode("utf-8", "replace").decode()


def _whole(value: object, limit: int) -> int:
    return value if isinstance(value, int) and 0 <= value < limit else 0


# --- stack samples from `py-spy record --format raw` (py-spy 0.4): `frame;frame;… COUNT`, outermost first
# A frame is `function (file:line)`. With `--threads` the first part of a line is `thread (ID): NAME`.

_LINE = re.compile(rb"([^\n]{1,20000}) (\d{1,12})\r?\n?")
_FRAME = re.compile(r"(.{1,500}?) \((.{1,500}?)(?::(\d{1,9}))?\)")
_THREAD = re.compile(r"thread \(\w+\)(?:: (.*))?")
_HEAD = re.compile(rb"(?:thread \(\w+\)[^;\n]*;)?[^;\n]{1,500} \([^;\n]{1,500}(?::\d+)?\)(?:;[^;\n]{1,1000})* \d+\r?\n")
_OUTERMOST = "<module>"


@dataclass(frozen=True)
class Sample:
    """A stack that was seen `count` times; frames innermost first. `line` is its line in the file, from 1."""

    frames: tuple[Frame, ...]
    count: int
    line: int
    is_main: bool


def looks_like_samples(head: bytes) -> bool:
    """Return whether a file that begins like this contains samples."""
    return _HEAD.match(head) is not None


def parse_samples(lines: Iterable[bytes]) -> Iterator[Sample]:
    """Yield the samples; other lines (py-spy's own messages) are skipped."""
    for number, line in enumerate(lines, 1):
        if line.startswith(b"py-spy>") or not (match := _LINE.fullmatch(line)):
            continue
        parts = match[1].decode("utf-8", "replace").split(";")
        thread = _THREAD.fullmatch(parts[0])
        found = [_FRAME.fullmatch(part) for part in (parts[1:] if thread else parts)]
        frames = tuple(Frame(each[2], int(each[3] or 0), each[1]) for each in reversed(found) if each)
        if frames:
            is_main = thread[1] == "MainThread" if thread else frames[-1].function == _OUTERMOST
            yield Sample(frames, int(match[2]), number, is_main)
