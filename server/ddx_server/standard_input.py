"""`-` as a target: standard input, kept in a file during the investigation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ddx_tools.model.errors import UsageError
from ddx_tools.sources.temporary import temporary_directory

_LIMIT_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 20


@contextmanager
def on_disk(target: Sequence[str]) -> Iterator[list[str]]:
    """Yield the target with `-` replaced by a file that holds standard input. Raises UsageError without input."""
    if "-" not in target:
        yield list(target)
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing is piped into ddx", "Pipe in a log (cat train.log | ddx why -), or name the file.")
    with temporary_directory("stdin") as directory:
        file = Path(directory) / "stdin.log"
        _copy(sys.stdin.buffer, file)
        yield [str(file) if item == "-" else item for item in target]


def _copy(stream: BinaryIO, file: Path) -> None:
    """Copy a whole stream: its end says how the job died, so a part would not do."""
    size = 0
    with file.open("wb") as out:
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > _LIMIT_BYTES:
                raise UsageError(
                    "more than 4 GiB on standard input", "Save it to a file and name that: ddx why train.log"
                )
            out.write(chunk)
    if not size:
        raise UsageError("standard input was empty", "Pipe in a log (cat train.log | ddx why -), or name the file.")
