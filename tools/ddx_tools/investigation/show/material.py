"""The lines around a place in a file: on this machine, in an archive, in a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.files.kinds import HEAD_BYTES, FileKind, kind_of
from ddx_tools.model.files.log_text import as_utf8
from ddx_tools.redaction.text import redact
from ddx_tools.sources.archives import SEPARATOR
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of

_AROUND = 5
_MOST_LINES = 40
"""For a place without a line number: this many lines from the beginning."""
_MOST_BYTES = 1 << 30

NumberedLine = tuple[int | None, str]


def lines_around(data: bytes, path: str, line: int | None, count: int = 1) -> list[NumberedLine]:
    """The lines around `count` lines from a number on (1-based), or the first lines of the file.

    Of a database, one line without a number says how to read it. Raises UsageError if there is no such line.
    """
    return around(readable_lines(data), path, line, count)


def readable_lines(data: bytes) -> list[str] | None:
    """All lines of a file, with secrets redacted, which takes a second per some megabytes; None for a database."""
    if kind_of(data[:HEAD_BYTES]) is FileKind.DATABASE:
        return None
    return redact(as_utf8(data).decode("utf-8", "replace")).split("\n")


def around(text: Sequence[str] | None, path: str, line: int | None, count: int = 1) -> list[NumberedLine]:
    """Return the numbered lines around a line of a file, or its first lines if `line` is None.

    `text` is the result of `readable_lines`; None means a database, for which one line with a hint is returned. `count`
    lines from `line` (1-based) are in the middle. Raises UsageError if the file has no such line.
    """
    if text is None:
        return [(None, f"a database, which has no lines; what ddx reads in it: ddx profile {path}")]
    first = max(1, line - _AROUND) if line else 1
    last = line + count - 1 + _AROUND if line else _MOST_LINES
    if line and line > len(text):
        raise UsageError(f"{path} has {len(text)} lines", "Name one of them.")
    return [(number, text[number - 1]) for number in range(first, min(last, len(text)) + 1)]


def of_bundle(bundle: Bundle, path: str) -> bytes:
    """The bytes of a bundle's answer, found by its name, by the path of the file read, or by the end of that path."""
    try:
        return bundle.read(path)
    except UnreadableInput as error:
        # As in `brought`: the path from the user's folder takes precedence over a suffix that another file may share.
        below = {f"{place.rstrip('/')}/{path}" for place in bundle.manifest.target} & bundle.names.keys()
        name = below.pop() if len(below) == 1 else _ends_with(bundle.names, path)
        if name is None:
            raise UsageError(f"the bundle does not hold {path}", "ddx bundle inspect lists its contents.") from error
        return bundle.read(name)


def brought(host: Host, path: str, target: Sequence[str]) -> bytes:
    """The bytes of a file in the user's `target`, by its path or a suffix of it; without a target, by its path."""
    outermost = path if target or Path(path).exists() else path.partition(SEPARATOR)[0]
    taken = intake_of(host, [str(Path(place).absolute()) for place in target or [outermost]])
    by_path = {material.path: material for material in taken.materials}
    exact = str(Path(outermost).absolute()) + path.removeprefix(outermost)
    # A file of the same name deeper down makes the suffix ambiguous, but not the path from the user's folder.
    below = {str(Path(place).absolute() / outermost) + path.removeprefix(outermost) for place in target} & set(by_path)
    found = below.pop() if len(below) == 1 else _ends_with(by_path, path)
    material = by_path.get(exact) or by_path.get(found or "")
    if material is None:
        raise UsageError(f"{path}: no such file", "Use the name in the evidence: job.tar!logs/rank3.log:41")
    if material.error:
        raise UsageError(material.error.message, material.error.help)
    whole = material.head and not material.cut
    return material.head if whole else taken.host.read(material.path, max_bytes=_MOST_BYTES).data


def _ends_with(paths: Iterable[str], end: str) -> str | None:
    """The one path with this suffix of whole path components; None if there is none, or several."""
    found = [path for path in paths if path.endswith((f"/{end}", f"{SEPARATOR}{end}"))]
    return found[0] if len(found) == 1 else None
