"""Text as a reader sees it, with the position of each character in the raw bytes.

Raw bytes may have colour codes and NULs, two bytes per letter in UTF-16, or `\\n` for a line end in JSON and `repr`:
secrets are searched in the text that these stand for.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddx_tools.redaction.patterns import compiled

_DENSE_NULS = 0.25
_WIDE_NULS, _OTHER_NULS = 0.1, 0.2
"""Thresholds for UTF-16: the share of letters with a NUL on one side, and of those with one on the other."""
_MOST_LEVELS = 4

_NUL_BEFORE_VARIABLE = re.compile(rb"\0(?=[A-Za-z_][A-Za-z0-9_]{0,200}=[^\0=\s])|(\0)")
_NUL = re.compile(rb"\0")
# In UTF-8: colours and other terminal sequences (of a link only the frame, since its address is text), control
# characters, and characters that have no width or change the text direction.
_UNSEEN = re.compile(
    rb"\x1b(?:\[[0-9;?:<=>]{0,40}[ -/]{0,4}[@-~]|\]|\\|[()][A-Z0-9]|[@-Z^_])?|[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f\xad]|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)
UNSEEN = (
    r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]"
    r"|\xc2[\x80-\x9f\xad]|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)
"""Matches the start of any of these."""
_ANY_UNSEEN = compiled(UNSEEN)
_ESCAPE = re.compile(
    rb"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\([0-3][0-7]{2})|\\([nrtbfave\"'/\\=&`$!])"
    rb"|%([0-9A-Fa-f]{2})|&(?:(quot|amp|lt|gt|apos)|#([0-9]{1,3})|#x([0-9a-fA-F]{2}));"
)
_BY_LETTER = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"a": b"\a", b"v": b"\v", b"e": b"\x1b"}
_BY_ENTITY = {b"quot": b'"', b"amp": b"&", b"lt": b"<", b"gt": b">", b"apos": b"'"}
_OF_TABLES = (0x2502, 0x2503)
_NO_WIDTH = frozenset({0xAD, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)})


@dataclass(frozen=True, slots=True)
class ReadableText:
    """Text; for each of its bytes, the start and end of the raw bytes that it was read from."""

    text: bytes
    starts: Sequence[int] | None = None
    ends: Sequence[int] | None = None
    """None: each byte stands for itself."""

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The raw start and end of a non-empty stretch of the text."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def has_nul(data: bytes) -> bool:
    """Whether `without_nuls` would remove anything."""
    return b"\0" in data


def without_nuls(data: bytes) -> Iterator[bytes]:
    """Yield the readings of a text with NULs: as word separators (`/proc/<pid>/environ`), or ignored.

    In UTF-16 and UTF-32 they are part of each letter. Line ends stay in place.
    """
    yield _NUL_BEFORE_VARIABLE.sub(_blank_before_variable, data)
    if data.count(b"\0") < _DENSE_NULS * len(data):
        yield data.replace(b"\0", b" ")


def placed_without_nuls(data: bytes) -> Iterator[ReadableText]:
    """Like `without_nuls`, for one line and with positions."""
    yield rewritten(ReadableText(data), _NUL_BEFORE_VARIABLE, _blank_before_variable)
    if data.count(b"\0") < _DENSE_NULS * len(data):
        yield ReadableText(data.replace(b"\0", b" "))


def _blank_before_variable(match: re.Match[bytes]) -> bytes:
    return b"" if match[1] else b" "


def of_two_bytes(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield the readings of a block as UTF-16: the encoding, the start of the first letter, the text as UTF-8.

    A block may begin within a letter. UTF-16 is recognised by NULs in every other byte, which spaces and digits have in
    any language.
    """
    nuls = [data[at::2].count(0) for at in (0, 1)]
    if max(nuls) * 2 < _WIDE_NULS * len(data) or min(nuls) > _OTHER_NULS * max(nuls):
        return
    for begin, encoding in (
        ((0, "utf-16-be"), (1, "utf-16-le")) if nuls[0] > nuls[1] else ((0, "utf-16-le"), (1, "utf-16-be"))
    ):
        whole = data[begin : len(data) - (len(data) - begin) % 2]
        yield encoding, begin, whole.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")


def seen(data: bytes) -> bytes:
    """Remove terminal control sequences; returns the same object if there are none."""
    return _UNSEEN.sub(b"", data) if is_any_unseen(data, [(0, len(data))]) else data


def is_any_unseen(data: bytes, stretches: Iterable[tuple[int, int]]) -> bool:
    """Whether `seen` would remove anything from these stretches."""
    return any(_ANY_UNSEEN.search(data, begin, end) for begin, end in stretches)


def placed_seen(reading: ReadableText) -> ReadableText:
    """Like `seen`, for one line and with positions."""
    return rewritten(reading, _UNSEEN, lambda _: b"") if _UNSEEN.search(reading.text) else reading


def unescaped(text: bytes) -> Iterator[ReadableText]:
    """Yield a line verbatim, then with its escapes decoded, then with the escapes in that decoded: JSON in JSON."""
    reading = ReadableText(text)
    yield reading
    for _ in range(_MOST_LEVELS):
        if not _ESCAPE.search(reading.text):
            return
        reading = placed_seen(rewritten(reading, _ESCAPE, _escaped))
        yield reading
        if has_nul(reading.text):
            yield rewritten(reading, _NUL_BEFORE_VARIABLE, _blank_before_variable)
            yield rewritten(reading, _NUL, lambda _: b" ")


def _escaped(match: re.Match[bytes]) -> bytes:
    number = match[1] or match[2] or match[5] or match[8]
    if number or match[3] or match[7]:
        code = int(number, 16) if number else int(match[3], 8) if match[3] else int(match[7])
        if code in _OF_TABLES:
            return b"|"
        if code in _NO_WIDTH:
            return b""
        return bytes([code]) if code < 128 or match[2] or match[5] else chr(code).encode("utf-8", "surrogatepass")
    return _BY_LETTER.get(match[4], match[4]) if match[4] else _BY_ENTITY[match[6]]


def rewritten(
    reading: ReadableText, pattern: re.Pattern[bytes], becomes: Callable[[re.Match[bytes]], bytes]
) -> ReadableText:
    """Replace each match of a pattern by what `becomes` returns for it.

    All bytes of a replacement get the raw position of the whole match.
    """
    text, was_starts, was_ends = reading.text, reading.starts, reading.ends
    out, starts, ends = bytearray(), array("I"), array("I")
    at = 0
    for match in [*pattern.finditer(text), None]:
        start, end = match.span() if match else (len(text), len(text))
        out += text[at:start]
        starts.extend(was_starts[at:start] if was_starts is not None else range(at, start))
        ends.extend(was_ends[at:start] if was_ends is not None else range(at + 1, start + 1))
        if match and (new := becomes(match)):
            out += new
            first, last = reading.place(start, end)
            starts.extend([first] * len(new))
            ends.extend([last] * len(new))
        at = end
    return ReadableText(bytes(out), starts, ends)
