"""Writes the files that commands leave: whole or not at all, in pieces, compressed if the name ends in .gz."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.session.plan import Step
from ddx_tools.model.diagnosis import Finding, ProbeResult, ProbeStatus
from ddx_tools.model.errors import UsageError
from ddx_tools.redaction.text import redact_bytes

Progress = Callable[[str], None]

_FASTEST_SENSIBLE = 4
"""gzip's level: the default takes three times as long to save another tenth."""


def refuse_unwritable(out: Path) -> None:
    """Raise UsageError if a file cannot be written to this path, before anything is captured."""
    if out.is_dir():
        raise _not_writable(out, "it is a directory")
    if not out.parent.is_dir():
        raise _not_writable(out, f"there is no directory {out.parent}")


def write_file(out: Path, content: str | bytes) -> int:
    """Write a text or bytes, replacing an existing file; return its size in bytes.

    Raises UsageError if that fails; then nothing new is left.
    """
    try:
        with _whole(out) as file:
            return file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise _not_writable(out, (error.strerror or str(error)).lower()) from error


def write_pieces(out: Path, pieces: Iterator[bytes], progress: Progress) -> None:
    """Write a file from pieces, replacing an existing one. Raises UsageError if that fails."""
    size = 0
    try:
        with _opened(out) as file:
            for piece in pieces:
                file.write(redact_bytes(piece))
                size += len(piece)
                progress(f"writing {out.name}: {size / 1e6:.0f} MB")
    except OSError as error:
        raise _not_writable(out, (error.strerror or str(error)).lower()) from error


@contextmanager
def _opened(out: Path) -> Iterator[BinaryIO]:
    with _whole(out) as file:
        if out.suffix != ".gz":
            yield file
            return
        # Without name and time in the header, the same records give the same bytes.
        with gzip.GzipFile("", "wb", _FASTEST_SENSIBLE, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)


@contextmanager
def _whole(out: Path) -> Iterator[BinaryIO]:
    """A file that gets its name only once it is complete: a full disk or a signal leaves no half of it."""
    if out.exists() and not out.is_file():  # a device or a pipe
        with out.open("wb") as file:
            yield file
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(out.resolve() if out.is_symlink() else out)
    finally:
        part.unlink(missing_ok=True)


def _not_writable(out: Path, why: str) -> UsageError:
    return UsageError(f"{out} cannot be written: {why}", "Name a file that you may write.")


def write_exports(
    store: Store,
    step: Step,
    findings: Sequence[Finding],
    results: Sequence[ProbeResult],
    progress: Progress,
) -> None:
    """Write the exports of a step, or report that a file was not written because there was nothing to put into it."""
    seen = any(result.status in (ProbeStatus.OK, ProbeStatus.PARTIAL) for result in results)
    for name, out in step.exports.items():
        if seen:
            write_pieces(out, step.probe.exports[name].write(store, findings), progress)
            continue
        for result in results:
            result.problems.append(f"{out} was not written: there is nothing to export")
