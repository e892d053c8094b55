"""Lengthens logs with lines that say nothing about the fault: library lines, or the logs' own ordinary lines."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Collection, Iterable
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from ddx_evals.metamorphic.chatter import Chatter
from ddx_evals.metamorphic.own_lines import OwnLines, ordinary_lines

LOG_SUFFIXES = frozenset({".log", ".out", ".err"})


class Grower(StrEnum):
    """The kind of lines that lengthen a log."""

    CHATTER = "chatter"
    """Lines that libraries print."""
    OWN = "own"
    """The log's own ordinary lines, as if it had begun much earlier."""


def grown(data: bytes, more_bytes: int, seed: int, *, moves: bool = True, start: datetime | None = None) -> bytes:
    """Insert `more_bytes` of chatter at random places between a log's lines, which stay unchanged.

    `start`: the time that the chatter begins with, if the material is of another time.
    """
    chatter, rng = Chatter(seed, moves=moves, start=start), random.Random(seed + 1)
    lines = _lines(data)
    labels = [found[0] for line in lines if (found := _LABEL.match(line))]
    is_labelled = len(labels) >= _LABELLED_SHARE * len(lines)
    places = sorted(rng.randrange(len(lines) + 1) for _ in range(max(4, len(lines))))
    share = more_bytes // len(places)
    pieces: list[bytes] = []
    at = 0
    for place in places:
        pieces += lines[at:place]
        at = place
        size = 0
        while size < share:
            label = rng.choice(labels) if labels and is_labelled else b""
            told = b"".join(label + f"{line}\n".encode() for line in chatter.some())
            pieces.append(told)
            size += len(told)
    return b"".join([*pieces, *lines[at:]])


_LABEL = re.compile(rb"\s*\d+: |\[\d+,\d+\]<std\w+>: ?")
"""What srun and mpirun put before each line of a rank."""
_LABELLED_SHARE = 0.9
_DATE = re.compile(rb"\b(20\d\d)[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)")
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_SYSLOG = re.compile(rb"^(" + b"|".join(_MONTHS) + rb") +(\d{1,2}) (\d\d):(\d\d):(\d\d) ", re.M)


def first_date(texts: Iterable[bytes]) -> datetime | None:
    """Return the first time with a date in the first text that has one; lines of syslog are taken for 2026's."""
    for text in texts:
        try:
            if found := _DATE.search(text):
                return datetime(*map(int, found.groups()))  # type: ignore[arg-type]
            if found := _SYSLOG.search(text):
                month = _MONTHS.index(found[1]) + 1
                return datetime(2026, month, *map(int, found.groups()[1:]))  # type: ignore[arg-type]
        except ValueError:
            continue
    return None


def grown_earlier(data: bytes, more_bytes: int, seed: int, without: Collection[bytes] = ()) -> bytes:
    """Add `more_bytes` of a log's own ordinary lines before the originals, with earlier times and lower counts.

    `without`: texts whose lines must not be repeated.
    """
    lines = _lines(data)
    ordinary = set(ordinary_lines(lines, without))
    own = OwnLines(sorted(ordinary), seed)
    places = [at for at, line in enumerate(lines) if line.rstrip(b"\r\n") in ordinary]
    share = more_bytes // max(1, len(places))
    if not places:
        return b"".join([*own.before(min(ordinary), more_bytes), *lines])
    pieces: list[bytes] = []
    for at, line in enumerate(lines):
        if at in places:
            pieces += own.before(line.rstrip(b"\r\n"), share)
        pieces.append(line)
    return b"".join(pieces)


def grow_folder(
    source: Path, target: Path, more_bytes: int, grower: Grower, seed: int = 0, without: Collection[str] = ()
) -> None:
    """Copy a folder and add `more_bytes` to each log. A folder without a log stays unchanged.

    `without`: texts whose lines must not be repeated.
    """
    shutil.copytree(source, target)
    for number, file in enumerate(sorted(target.rglob("*"))):
        if file.is_file() and file.suffix in LOG_SUFFIXES:
            data = file.read_bytes()
            if grower is Grower.CHATTER:
                file.write_bytes(grown(data, more_bytes, seed + number))
            else:
                kept = [line.encode() for line in without]
                file.write_bytes(grown_earlier(data, more_bytes, seed + number, kept))


def _lines(data: bytes) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\n", b"\r")):
        lines[-1] += b"\n"
    return lines
