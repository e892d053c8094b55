"""Redacts the texts in pickled records; everything else stays byte for byte, and they stay valid pickles.

Records name files, functions and groups, some of them named by people. Nothing is unpickled: the operations are read as
a list. Before that, each text is searched once, since most records have no secrets.
"""

from __future__ import annotations

import functools
import io
import mmap
import pickletools
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ddx_tools.redaction.names import Meaning, meaning_of
from ddx_tools.redaction.pickle_values import Operation, values_by_place
from ddx_tools.redaction.shapes import program_names
from ddx_tools.redaction.structures import is_secret_option
from ddx_tools.redaction.text import MARK, Counts, redact_bytes, secrets_in
from ddx_tools.redaction.values import KIND, may_be_secret

_PIECE_BYTES = 4 << 20
_OVERLAP_BYTES = 4 << 10
_RUN = re.compile(rb"[ -~]{4,}")
_NAME = re.compile(rb"[A-Za-z_][\w.\-]{1,80}")

_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_HOLD_TEXT = _TEXTS | _OLD_TEXTS | _BYTES | {"BYTEARRAY8"}
_OF_MEMO = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}


def redact_pickle(data: bytes, counts: Counts | None = None) -> bytes:
    """Redact the texts of a pickle; returns the same object if it has no secrets.

    Everything after a damaged place is redacted as text.
    """
    return b"".join(_rewritten(data, io.BytesIO(data), counts)) if _may_hold_one(io.BytesIO(data)) else data


def copy_redacted_pickle(source: Path, target: BinaryIO, counts: Counts | None = None) -> None:
    """Redact a pickle file of any size into `target`. Raises OSError."""
    with source.open("rb") as file:
        may_hold_one = _may_hold_one(file)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if may_hold_one:
                target.writelines(_rewritten(data, data, counts))
            else:
                target.writelines(data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))


def _may_hold_one(file: BinaryIO) -> bool:
    """Whether any text of a pickle, or anything like a text, contains a secret or is the name of one."""
    rest = b""
    while chunk := file.read(_PIECE_BYTES):
        runs = {*_RUN.findall(rest + chunk)}
        rest = chunk[-_OVERLAP_BYTES:]
        # The length before a text, and the operation after it, may look like one of its letters.
        texts = {text for run in runs for text in (run, run[1:])}
        names = [name for text in texts for name in (text, text[:-1])]
        if any(map(_is_name, names)) or any(map(_takes_a_secret, names)) or secrets_in(b"\n\n".join(sorted(texts))):
            return True
    return False


def _takes_a_secret(text: bytes) -> bool:
    """Whether a text is an option for a secret, or a program with one among its arguments."""
    if text.startswith(b"-"):
        return is_secret_option(text.decode("latin-1"))
    return bool(_program().fullmatch(text))


@functools.cache
def _program() -> re.Pattern[bytes]:
    return re.compile(rf"(?:\S{{0,200}}/)?(?:{'|'.join(program_names())})".encode())


def _is_name(text: bytes) -> bool:
    return bool(_NAME.fullmatch(text)) and meaning_of(text.decode("latin-1")) is Meaning.CERTAINLY


def _rewritten(data: bytes | mmap.mmap, stream: BinaryIO | mmap.mmap, counts: Counts | None) -> Iterator[bytes]:
    """Yield a redacted pickle piece by piece, without frames, which only give the old length of each part."""
    known: dict[bytes, bytes] = {}
    by_place = values_by_place(_read(stream))
    stream.seek(0)
    kept = at = 0
    named = False
    operations = _operations(stream)
    following = next(operations, None)
    while following:
        (name, argument, at), following = following, next(operations, None)
        end = following[2] if following else at + 1 if name == "STOP" else None
        if name == "FRAME":
            yield data[kept:at]
            kept = at + 9
        elif argument is not None:
            text = argument.encode("utf-8", "surrogatepass") if isinstance(argument, str) else bytes(argument)
            is_secret = at in by_place or (named and not text.startswith(b"-") and _is_value(text))
            clean = by_place.get(at, MARK.encode()) if is_secret else known.get(text)
            if clean is None:
                clean = known[text] = redact_bytes(text, counts)
            elif is_secret and counts is not None:
                counts[KIND] += 1
            named = _is_name(text)
            if clean != text and end is not None:
                yield data[kept:at]
                yield _written(name, clean)
                kept = end
        elif name not in _OF_MEMO:
            named = False
        at = at if end is None else end
    yield data[kept:at]
    yield redact_bytes(data[at:], counts)


def _is_value(text: bytes) -> bool:
    return may_be_secret(text.decode("utf-8", "replace"))


def _operations(stream: BinaryIO | mmap.mmap) -> Iterator[tuple[str, str | bytes | None, int]]:
    """Yield name, text and position of each operation, as far as readable."""
    for operation, argument, place in _read(stream):
        yield operation.name, argument if operation.name in _HOLD_TEXT else None, place


def _read(stream: BinaryIO | mmap.mmap) -> Iterator[Operation]:
    try:
        for operation, argument, place in pickletools.genops(stream):  # type: ignore[arg-type]
            yield operation, argument, place or 0
    except (ValueError, OverflowError, MemoryError, EOFError, struct.error):
        return


def _written(name: str, text: bytes) -> bytes:
    if name == "BYTEARRAY8":
        return b"\x96" + struct.pack("<Q", len(text)) + text
    return (b"X" if name in _TEXTS else b"T" if name in _OLD_TEXTS else b"B") + struct.pack("<I", len(text)) + text
