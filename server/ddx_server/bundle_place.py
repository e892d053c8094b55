"""Where a bundle is written: named by time and job, so that a second capture does not overwrite the first."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_MOST_CHARACTERS = 40
_ENDING = ".tar.zst"


def name_of_bundle(target: Sequence[str], now: dt.datetime | None = None) -> Path:
    """`incident-20261122-101530-4242.tar.zst`: an unused name made of the capture time (UTC) and the job."""
    from ddx_tools.redaction.text import MARK, redact

    job = redact(Path(target[0]).stem).replace(MARK, "") if target else ""
    job = re.sub(r"[^\w.-]+", "-", job)[:_MOST_CHARACTERS].strip("-.")
    at = (now or dt.datetime.now(dt.UTC)).strftime("%Y%m%d-%H%M%S")
    stem = "-".join(filter(None, ("incident", at, job)))
    path, number = Path(stem + _ENDING), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{_ENDING}")
    return path


@contextmanager
def place_of_bundle(wanted: Path | None, *, force: bool) -> Iterator[Path | None]:
    """Yield the path to write to. With `force`, an existing bundle is replaced once the new one is complete."""
    if wanted is None or not force or not wanted.exists():
        yield wanted
        return
    ending = _ENDING if wanted.name.endswith(_ENDING) else ""
    # With our pid, so that another process replacing the bundle at the same time uses a different name.
    place = wanted.with_name(f".{wanted.name.removesuffix(ending)}.new-{os.getpid()}{ending}")
    try:
        yield place
        if wanted.is_dir() and not wanted.is_symlink():
            shutil.rmtree(wanted)
        place.replace(wanted)
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
