"""The lines around a place of a file: on this machine, in an archive, in a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.model.files.log_text import as_utf8
from ddx_tools.redaction.text import redact
from ddx_tools.sources.archives import SEPARATOR
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of

_AROUND = 5
_MOST_LINES = 40
"""Of a place without a line: so many from the beginning."""
_MOST_BYTES = 1 << 30

NumberedLine = tuple[int | None, str]


def lines_around(data: bytes, path: str, line: int | None) -> list[NumberedLine]:
    """The lines around one (1-based), or the first ones. Raises UsageError for a line that is not there."""
    text = redact(as_utf8(data).decode("utf-8", "replace")).split("\n")
    first = max(1, line - _AROUND) if line else 1
    last = line + _AROUND if line else _MOST_LINES
    if line and line > len(text):
        raise UsageError(f"{path} has {len(text)} lines", "Name one of them.")
    return [(number, text[number - 1]) for number in range(first, min(last, len(text)) + 1)]


def of_bundle(bundle: Bundle, path: str) -> bytes:
    """The bytes of an answer, by its name, by the path of the file that was read, or by the end of that path."""
    try:
        return bundle.read(path)
    except UnreadableInput as error:
        # As in `brought`: the path from what was taken in is no end that another file may share.
        below = {f"{place.rstrip('/')}/{path}" for place in bundle.manifest.target} & bundle.names.keys()
        name = below.pop() if len(below) == 1 else _ends_with(bundle.names, path)
        if name is None:
            raise UsageError(f"the bundle does not hold {path}", "ddx bundle inspect lists what it holds.") from error
        return bundle.read(name)


def brought(host: Host, path: str, target: Sequence[str]) -> bytes:
    """The bytes of a file of the user's `target`, by its path or the end of it; without any, by its path."""
    outermost = path if target or Path(path).exists() else path.partition(SEPARATOR)[0]
    taken = intake_of(host, [str(Path(place).absolute()) for place in target or [outermost]])
    by_path = {material.path: material for material in taken.materials}
    exact = str(Path(outermost).absolute()) + path.removeprefix(outermost)
    # A file of the same name deeper down makes its end ambiguous, not its path from what the user passed.
    below = {str(Path(place).absolute() / outermost) + path.removeprefix(outermost) for place in target} & set(by_path)
    found = below.pop() if len(below) == 1 else _ends_with(by_path, path)
    material = by_path.get(exact) or by_path.get(found or "")
    if material is None:
        raise UsageError(f"{path}: no such file", "Name it as the evidence does: job.tar!logs/rank3.log:41")
    if material.error:
        raise UsageError(material.error.message, material.error.help)
    whole = material.head and not material.cut
    return material.head if whole else taken.host.read(material.path, max_bytes=_MOST_BYTES).data


def _ends_with(paths: Iterable[str], end: str) -> str | None:
    """The one path that ends so, at a border of folders; None where there is none, or several."""
    found = [path for path in paths if path.endswith((f"/{end}", f"{SEPARATOR}{end}"))]
    return found[0] if len(found) == 1 else None
