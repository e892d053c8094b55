"""`-` as a target: what comes in on standard input, as a file for the time of the investigation."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ddx_tools.errors import UsageError

_LIMIT_BYTES = 256 << 20


@contextmanager
def on_disk(target: Sequence[str]) -> Iterator[list[str]]:
    """The target with `-` replaced by a file that holds standard input."""
    if "-" not in target:
        yield list(target)
        return
    if sys.stdin.isatty():
        raise UsageError("nothing is piped into ddx", "Pipe a log in (cat train.log | ddx why -), or name the file.")
    with tempfile.TemporaryDirectory(prefix="ddx-stdin-") as directory:
        file = Path(directory) / "stdin.log"
        file.write_bytes(sys.stdin.buffer.read(_LIMIT_BYTES))
        yield [str(file) if item == "-" else item for item in target]
