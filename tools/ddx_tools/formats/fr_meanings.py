"""What the raw bytes of entries refer to, and what was made of them in the record of another rank.

Raw bytes refer to values of their record by number. Most records of a job hold equal values under equal numbers: then
equal bytes mean the same, and need not be read again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.formats.fr_calls import Call, Progress

_OPCODES = re.compile(rb"h(.)|j(.{4})|K.|M..|J.{4}|\x8a\x08.{8}|G.{8}|.", re.DOTALL)
_PATH = re.compile(rb"\]\((?:h.|j.{4})+e", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallMade:
    """What one kind of entry says of its call, without its group."""

    call: Call
    progress: Progress
    items: int
    """Sizes and types that were read for it."""


class Meanings:
    """What is known of the raw bytes that one template finds."""

    def __init__(self) -> None:
        self._paths: dict[bytes, tuple[int, ...]] = {}
        self._calls: dict[int, tuple[tuple[int, ...], list[str], CallMade]] = {}

    def path(self, raw: bytes) -> tuple[int, ...]:
        """The numbers of the frames of a call path; none if it holds anything else."""
        numbers = self._paths.get(raw)
        if numbers is None:
            if not _PATH.fullmatch(raw):
                return ()
            numbers = self._paths[raw] = _references(raw)
        return numbers

    def call(self, stencil: int, values: Sequence[Any]) -> CallMade | None:
        """What was made of the entries of a stencil, if they refer to the same texts among the record's values."""
        kept = self._calls.get(stencil)
        if kept is None:
            return None
        numbers, texts, made = kept
        if numbers and max(numbers) >= len(values):
            return None
        return made if [values[number] for number in numbers] == texts else None

    def keep(self, stencil: int, raw: bytes, values: Sequence[Any], made: CallMade) -> None:
        """Keep what was made of the entries of a stencil, whose raw bytes are these, for the next records."""
        numbers = _references(raw)
        texts = [values[number] for number in numbers]
        # Other values can be compared in ways that take for ever, and equal ones can be of different types.
        if all(type(text) is str for text in texts):
            self._calls[stencil] = numbers, texts, made


def _references(raw: bytes) -> tuple[int, ...]:
    """The numbers of the values that raw bytes refer to, in their order."""
    numbers = []
    for found in _OPCODES.finditer(raw):
        if found[1]:
            numbers.append(found[1][0])
        elif found[2]:
            numbers.append(struct.unpack("<I", found[2])[0])
    return tuple(numbers)
