"""Redacts text: everything that ddx saves, prints, serves, logs or sends passes through here.

`redact` takes text, `redact_bytes` text in any encoding. Everything that a reader of the evidence needs stays: lines
keep their numbers, JSON stays JSON, source code that only names a secret stays, and redacting twice changes nothing
more.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from ddx_tools.redaction.blocks import secrets_of, stretches_to_search
from ddx_tools.redaction.readable_text import (
    ReadableText,
    has_nul,
    is_any_unseen,
    of_two_bytes,
    placed_seen,
    placed_without_nuls,
    seen,
    without_nuls,
)
from ddx_tools.redaction.shapes import Span, merged_spans

MARK = "<redacted>"
LEFT_OUT = "<left out: it could not be searched for secrets>"

_BLOCK_BYTES = 4 << 20
_SHORTEST_BYTES = 4

Counts = Counter[str]
"""The number of secrets redacted, by kind. Nothing else is recorded, neither length nor beginning."""


def redact(text: str, counts: Counts | None = None) -> str:
    """The text with every secret replaced by `<redacted>`."""
    if len(text) < _SHORTEST_BYTES:
        return text
    data = text.encode("utf-8", "surrogatepass")
    clean = redact_bytes(data, counts)
    return text if clean is data else clean.decode("utf-8", "surrogatepass")


def redact_bytes(data: bytes, counts: Counts | None = None) -> bytes:
    """Redact text in UTF-8, UTF-16 or with NULs in it; returns the same object if it has no secrets."""
    if len(data) <= _BLOCK_BYTES:
        return _redacted(data, counts) if len(data) >= _SHORTEST_BYTES else data
    blocks = list(_blocks(data))
    clean = [_redacted(block, counts) for block in blocks]
    if all(new is old for new, old in zip(clean, blocks, strict=True)):
        return data
    return b"".join(clean)


def redact_lines(lines: list[bytes]) -> list[bytes]:
    """Redact consecutive lines, without line ends, together, which costs a fifth."""
    if len(lines) == 1:
        return [redact_bytes(lines[0])]
    text = b"\n".join(lines)
    clean = redact_bytes(text)
    return lines if clean is text else clean.split(b"\n")


def redacted_part(data: bytes, begin: int, end: int) -> bytes:
    """Return bytes `begin` to `end` of a text with their secrets redacted.

    The whole text is searched, so that a secret that crosses either boundary is found too.
    """
    part = data[begin:end]
    spans = [(max(span.start, begin) - begin, min(span.end, end) - begin, span.kind) for span in secrets_in(data)]
    return replaced(part, [Span(*span) for span in spans if span[0] < span[1]])


def _blocks(data: bytes) -> Iterator[bytes]:
    """Yield blocks of whole lines; none ends within a private key."""
    start = 0
    while start < len(data):
        end = min(start + _BLOCK_BYTES, len(data))
        end = whole_lines(data, start, end) if end < len(data) else end
        yield data[start:end]
        start = end


_BEGIN, _END = b"-----BEGIN", b"-----END"
_LONGEST_KEY_BYTES = 64 << 10


def whole_lines(data: bytes, start: int, end: int) -> int:
    """The best end for a block that more text follows: after a line, before a private key, at most `end`."""
    end = data.rfind(b"\n", start, end) + 1 or end
    begin = data.rfind(_BEGIN, max(start, end - _LONGEST_KEY_BYTES), end)
    if begin >= 0 and data.find(_END, begin, end) < 0:
        return (data.rfind(b"\n", start, begin) + 1) or end
    return end


def _redacted(block: bytes, counts: Counts | None) -> bytes:
    try:
        spans = secrets_in(block)
        if counts is not None:
            counts.update(span.kind for span in spans)
        return replaced(block, spans) if spans else block
    except Exception:
        # Its content is unknown: better a reported gap than a leaked secret.
        if counts is not None:
            counts["could not be searched"] += 1
        return LEFT_OUT.encode() + b"\n" * block.count(b"\n")


def secrets_in(block: bytes) -> list[Span]:
    """Find the secrets of a block, with their positions in its bytes."""
    if not has_nul(block):
        stretches = stretches_to_search(block)
        if not is_any_unseen(block, stretches):
            return secrets_of(block, stretches)
        view = seen(block)
        return _placed(block, view, secrets_of(view), number=-1)
    found: list[Span] = []
    for number, view in enumerate(without_nuls(block)):
        shown = seen(view)
        if spans := secrets_of(shown):
            found += _placed(block, shown, spans, number)
    for encoding, begin, text in of_two_bytes(block):
        at, place = 0, begin
        for span in secrets_in(text):
            start = place + _wide(text[at : span.start], encoding)
            at, place = span.end, start + _wide(text[span.start : span.end], encoding)
            # NULs at its ends stay, as they do if it is found without decoding.
            outer = block[start:place]
            begins = start + len(outer) - len(outer.lstrip(b"\0"))
            found.append(Span(begins, start + len(outer.rstrip(b"\0")), span.kind))
    return merged_spans(found)


def _wide(text: bytes, encoding: str) -> int:
    """The number of bytes that UTF-8 text takes in another encoding."""
    return len(text.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass"))


def _placed(block: bytes, view: bytes, spans: list[Span], number: int) -> list[Span]:
    """Map spans in the readable text to raw bytes, line by line; a secret over several lines becomes several spans."""
    placed: list[Span] = []
    raw = _LineFinder(block)
    shown = _LineFinder(view)
    of_line, reading = -1, ReadableText(b"")
    for span in spans:
        for line, start, end in shown.pieces(span.start, span.end):
            raw_start, raw_end = raw.line(line)
            if line != of_line:  # a line of megabytes may hold thousands of secrets
                of_line, reading = line, _reading(block[raw_start:raw_end], number)
            first, last = reading.place(start, end)
            placed.append(Span(raw_start + first, raw_start + last, span.kind))
    return placed


def _reading(line: bytes, number: int) -> ReadableText:
    if number < 0:
        return placed_seen(ReadableText(line))
    return placed_seen(next(itertools.islice(placed_without_nuls(line), number, None)))


class _LineFinder:
    """Finds the lines of a text; they must be requested in order."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._number = 0
        self._start = 0
        self._end = self._end_of_line()

    def line(self, number: int) -> tuple[int, int]:
        """The start and end of a line."""
        while self._number < number:
            self._go_on()
        return self._start, self._end

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The parts of a stretch: line number, and start and end in that line."""
        while self._end < start:
            self._go_on()
        while start < end:
            if start < min(end, self._end):
                yield self._number, start - self._start, min(end, self._end) - self._start
            if end <= self._end:
                return
            self._go_on()
            start = self._start

    def _go_on(self) -> None:
        self._number += 1
        self._start = self._end + 1
        self._end = self._end_of_line()

    def _end_of_line(self) -> int:
        end = self._text.find(b"\n", self._start)
        return len(self._text) if end < 0 else end


def replaced(block: bytes, spans: list[Span]) -> bytes:
    """Replace each secret in a block with a mark; the number of lines stays the same."""
    out = bytearray()
    at = 0
    for span in merged_spans(spans):
        out += block[at : span.start]
        secret = block[span.start : span.end]
        out += _mark(secret) + b"\n" * secret.count(b"\n")
        at = span.end
    return bytes(out + block[at:])


def _mark(secret: bytes) -> bytes:
    """The mark in the encoding of the secret: two or four bytes per letter if the secret has that."""
    nuls = secret.count(b"\0")
    if nuls * 3 < len(secret):
        return MARK.encode()
    width = 4 if nuls * 3 >= len(secret) * 2 else 2
    mark = (b"\0" * (width - 1)).join(bytes([letter]) for letter in MARK.encode())
    return mark if width == 4 or len(secret) % 2 else mark + b"\0"  # so that letters stay complete
