"""Files for other programs that probes make of their rows: written in pieces, compressed if the name ends in .gz."""

from __future__ import annotations

import gzip
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
"""gzip's level: the default takes three times as long for a tenth less."""


def refuse_unwritable(out: Path) -> None:
    """Say at once, before anything is captured, that a file cannot be written there. Raises UsageError."""
    if out.is_dir():
        raise _not_writable(out, "it is a directory")
    if not out.parent.is_dir():
        raise _not_writable(out, f"there is no directory {out.parent}")


def write_pieces(out: Path, pieces: Iterator[bytes], progress: Progress) -> None:
    """Write a file, replacing what was there. Raises UsageError if that is not possible."""
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
    with out.open("wb") as file:
        if out.suffix != ".gz":
            yield file
            return
        # Without name and time of writing, the same records give the same bytes.
        with gzip.GzipFile("", "wb", _FASTEST_SENSIBLE, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)


def _not_writable(out: Path, why: str) -> UsageError:
    return UsageError(f"{out} cannot be written: {why}", "Name a file at a place that you may write to.")


def write_exports(
    store: Store,
    step: Step,
    findings: Sequence[Finding],
    results: Sequence[ProbeResult],
    progress: Progress,
) -> None:
    """Write the files that a step asks for; where nothing was seen, say that they were not."""
    seen = any(result.status in (ProbeStatus.OK, ProbeStatus.PARTIAL) for result in results)
    for name, out in step.exports.items():
        if seen:
            write_pieces(out, step.probe.exports[name].write(store, findings), progress)
            continue
        for result in results:
            result.problems.append(f"{out} was not written: there is nothing to put into it")
