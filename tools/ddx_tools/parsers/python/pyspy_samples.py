"""Samples of stacks, as `py-spy record --format raw` writes them (py-spy 0.4): `frame;frame;… COUNT`, outermost first.

A frame is `function (file:line)`. With `--threads` the first part of a line is `thread (ID): NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddx_tools.parsers.python.pyspy_json import Frame

_LINE = re.compile(rb"([^\n]{1,20000}) (\d{1,12})\r?\n?")
_FRAME = re.compile(r"(.{1,500}?) \((.{1,500}?)(?::(\d{1,9}))?\)")
_THREAD = re.compile(r"thread \(\w+\)(?:: (.*))?")
_HEAD = re.compile(rb"(?:thread \(\w+\)[^;\n]*;)?[^;\n]{1,500} \([^;\n]{1,500}(?::\d+)?\)(?:;[^;\n]{1,1000})* \d+\r?\n")
_OUTERMOST = "<module>"


@dataclass(frozen=True)
class Sample:
    """A stack that was seen `count` times; frames innermost first. `line` of the file, 1-based."""

    frames: tuple[Frame, ...]
    count: int
    line: int
    is_main: bool


def looks_like_samples(head: bytes) -> bool:
    """Whether a file that begins like this holds samples."""
    return _HEAD.match(head) is not None


def parse_samples(lines: Iterable[bytes]) -> Iterator[Sample]:
    """The samples; what is none (py-spy's own words) is left out."""
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
