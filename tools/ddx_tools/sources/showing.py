"""The lines around a place that evidence names, out of a file, a member of an archive, or a bundle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ddx_tools.errors import UnreadableInput, UsageError
from ddx_tools.parsers.logs.log_text import as_utf8
from ddx_tools.sources.archives import SEPARATOR
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.hosts.base import UNKNOWN_HOST
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.redaction.text import redact

_PLACE = re.compile(r"(?P<path>.+?)(?::(?P<line>[0-9]{1,12}))?")
_AROUND = 5
_MOST_LINES = 40
"""Of a place without a line: so many from the beginning."""


@dataclass(frozen=True)
class Shown:
    """Lines of a file, each with its 1-based number."""

    path: str
    lines: list[tuple[int, str]]


def show(place: str, bundle: Path | None = None) -> Shown:
    """The lines around `PATH:LINE`, or the first ones of `PATH`. Raises UsageError for what is not there."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise UsageError("no place was named", "Name a file and a line: ddx show train.log:41")
    path, line = found["path"], int(found["line"] or 0)
    data = _kept(bundle, path) if bundle else _brought(path)
    text = redact(as_utf8(data).decode("utf-8", "replace")).split("\n")
    first = max(1, line - _AROUND) if line else 1
    last = line + _AROUND if line else _MOST_LINES
    if line > len(text):
        raise UsageError(f"{path} has {len(text)} lines", "Name one of them.")
    return Shown(path, list(enumerate(text, 1))[first - 1 : last])


def _brought(path: str) -> bytes:
    outermost = path if Path(path).exists() else path.partition(SEPARATOR)[0]
    wanted = str(Path(outermost).absolute()) + path.removeprefix(outermost)
    taken = intake_of(LocalHost(UNKNOWN_HOST), [str(Path(outermost).absolute())])
    for material in taken.materials:
        if material.path == wanted:
            if material.error:
                raise UsageError(material.error.message, material.error.help)
            return material.head or taken.host.read(material.path, max_bytes=1 << 20).data
    raise UsageError(f"{path}: no such file", "Name it as the evidence does: job.tar!logs/rank3.log:41")


def _kept(bundle: Path, path: str) -> bytes:
    with Bundle(bundle) as opened:
        try:
            return opened.read(path)
        except UnreadableInput as error:
            help_text = f"ddx bundle inspect {bundle} lists what it holds."
            raise UsageError(f"{bundle} does not hold {path}", help_text) from error
