"""Finds secrets in a block of whole lines: in one line, across a wrapped line, in the lines of a private key."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

from ddx_tools.model.files.log_text import DIGITS_AS_ZERO
from ddx_tools.redaction.arguments import list_hint, of_argument_lines, of_lists
from ddx_tools.redaction.assignments import assigned, is_secret_name, rest_as_value
from ddx_tools.redaction.elements import is_element_open, value_in_next_line
from ddx_tools.redaction.following_lines import (
    behind_prefix,
    behind_same_prefix,
    leaves_open,
    names_a_secret,
    option_at_the_end,
    secret_is_below,
    value_of_a_field,
)
from ddx_tools.redaction.manifests import is_secret_of_kubernetes, values_of_the_manifest
from ddx_tools.redaction.name_hint import COARSE_HINT, NAME_HINT
from ddx_tools.redaction.nested import HEREDOC, opens, values_below
from ddx_tools.redaction.patterns import compiled, unbounded
from ddx_tools.redaction.readable_text import UNSEEN, unescaped
from ddx_tools.redaction.shapes import (
    Span,
    merged_spans,
    of_known_shapes,
    prefixes,
    random_tokens,
    shape_expression,
)
from ddx_tools.redaction.tables import TABLE_HINT, is_header, values_of_table
from ddx_tools.redaction.values import KIND, is_name, looks_secret

_LONG_BYTES = 16 << 10
"""In a longer line (JSON of megabytes), only the text around hints is searched."""
_BEFORE_BYTES, _BEHIND_BYTES = 1 << 10, 12 << 10
_STRETCH_BYTES = 4 << 10
_MOST_SHAPES = 20_000
_NEWLINE = 0x0A
_LONGEST_ESCAPE = 6
_FIELD_LINES = 4
"""The number of lines below its name within which a value may stand."""

KEY_BLOCK = b"private key"
_KEY_BEGIN = re.compile(
    rb"-{4,5} ?BEGIN (?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1)-{0,5}-?|Private-Lines: *\d+", re.I
)
_KEY_END = re.compile(rb"-{4,5} ?END [A-Z0-9 ]{0,40}(?:KEY|key V1)(?: BLOCK)?-{0,5}|Private-MAC:", re.I)
_KEY_LINE = re.compile(rb"[A-Za-z0-9+/=]{1,1000}|[A-Z][A-Za-z-]{2,30}: .{1,200}|")
_KEY_LINES = 400
_OTHERS_LINES = 200
_MOST_LINES = 2_000
_LONG_KEY_LINE = re.compile(rb"[A-Za-z0-9+/=]{40,}$")
_OPENED = re.compile(rb".*[\"']")
_INSIDE_KEY = re.compile(rb"[A-Za-z0-9+/=\s]*")

_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.S)

_WORD_ALONE = re.compile(rb"\s*[\"']?([^\s\"'=:{}\[\]()<>]+)[\"']?[),;\"'}\]]{0,6}\s*$")
_PROMPT = re.compile(rb"expect\b.{0,80}?(?:assword|assphrase|asscode|\bpin\b)", re.I)
_ANSWER = re.compile(rb"\bsend(?:line)?\b[ (]*(?:-- *)?[\"']([^\"'\\\n]+)")
_REFUSED = re.compile(rb"input_value=[\"']([^\"'\n]+)")
_LAST_WORD = re.compile(rb"[A-Za-z_][\w.-]*$")
"""pydantic's message about a value, below the line with its name."""

_SEAM_WORDS = (
    "password", "passwd", "passphrase", "secret_", "secret-", "api_key", "api-key", "apikey", "_token", "-token",
    "access_key", "access-key", "private_key", "authorization", "credential", "-key=", "_key=", '"key": "',
    'response="',
)  # fmt: skip


@functools.cache
def _hints() -> tuple[Any, Any]:
    """The hint expressions for names and for shapes. One for both costs thirty times as much: states multiply."""
    return compiled(f"{NAME_HINT}|(?i:{TABLE_HINT})"), compiled(f"{shape_expression()}|{list_hint()}|{HEREDOC}")


_clean_shapes: set[bytes] = set()
"""Shapes of lines without secrets, with every digit as 0: most log lines differ only in numbers."""


def secrets_of(block: bytes, stretches: list[tuple[int, int]] | None = None) -> list[Span]:
    """Find the secrets in a block of readable lines: sorted, without overlaps."""
    found: list[Span] = []
    stretches = stretches_to_search(block) if stretches is None else stretches
    for begin, limit in stretches:
        found += _in_stretch(block, begin, limit)
    if stretches and b"\n" in block:
        found += _over_seams(block, found, stretches)
    return merged_spans(found) if found else found


def _in_stretch(block: bytes, at: int, limit: int) -> list[Span]:
    found: list[Span] = []
    arguments_end = at
    by_name, by_shape = _hints()
    named, shaped = by_name.search(block, at, limit), by_shape.search(block, at, limit)
    while at < limit:
        named = by_name.search(block, at, limit) if named and named.start() < at else named
        shaped = by_shape.search(block, at, limit) if shaped and shaped.start() < at else shaped
        match = min((hint for hint in (named, shaped) if hint), key=lambda hint: int(hint.start()), default=None)
        if match is None:
            break
        place = match.start() + (
            block[match.start()] == _NEWLINE
        )  # the start of the line, after which a name may stand
        start = block.rfind(b"\n", 0, place) + 1
        end = block.find(b"\n", place)
        end = len(block) if end < 0 else end
        if end - start > _LONG_BYTES:
            start = _before_escape(block, max(start, place - _BEFORE_BYTES, at))
            end = max(_before_escape(block, min(end, match.end() + _BEHIND_BYTES)), match.end())
            found += _in_line(block, start, end)
            at = max(match.end(), end - _BEFORE_BYTES if end < len(block) else end)
            continue
        line = block[start:end]
        at = end  # the line end, after which the next name may stand
        shape = line.translate(DIGITS_AS_ZERO)
        if shape in _clean_shapes:
            continue
        here, arguments_end = of_argument_lines(block, start, end, arguments_end)
        here += [*_in_line(block, start, end), *_below(block, line, start, end)]
        if here:
            found += here
        elif not (
            _hints()[1].search(block, max(0, start - 1), end + 1)
            or leaves_open(line)
            or is_secret_of_kubernetes(line)
            or opens(line)
            or is_header(line)
            or is_element_open(line)
        ):
            _remember(shape)
    return found


@functools.cache
def _coarse_hint() -> Any:
    """An expression that matches in every stretch that may have a secret; only this one runs on all text."""
    return compiled(
        f"{COARSE_HINT}|{unbounded(shape_expression())}|{unbounded(list_hint())}|{HEREDOC}|{UNSEEN}|{_seam_hint().pattern.decode()}"
    )


def stretches_to_search(block: bytes) -> list[tuple[int, int]]:
    """The stretches of whole lines, a few kilobytes each, that may contain secrets or invisible characters."""
    found, at, size = [], 0, len(block)
    search = _coarse_hint().search
    while at < size and (match := search(block, at)):
        begin = block.rfind(b"\n", at, match.start()) + 1 or at
        at = block.find(b"\n", min(max(begin + _STRETCH_BYTES, match.end() - 1), size)) + 1 or size
        found.append((begin, at))
    return found


def _before_escape(block: bytes, at: int) -> int:
    """The position, moved so that it does not split an escape like `\\\\u001b`."""
    last = block.rfind(b"\\", max(0, at - _LONGEST_ESCAPE), at)
    if last < 0:
        return at
    before = block[max(0, last - 16) : last]
    return max(last - 16, 0) + len(before.rstrip(b"\\"))


def _remember(shape: bytes) -> None:
    if len(_clean_shapes) >= _MOST_SHAPES:
        _clean_shapes.clear()
    _clean_shapes.add(shape)


def _in_line(block: bytes, start: int, end: int) -> Iterator[Span]:
    """Find the secrets of a line, or of a part of a long one, under all readings of its escapes."""
    line = block[start:end]
    for reading in unescaped(line):
        found = secrets_in_text(reading.text)
        if reading.starts is not None and b"\n" in reading.text:
            found = itertools.chain(found, _in_lines(reading.text))
        for span in found:
            first, last = _between_escapes(line, *reading.place(span.start, span.end))
            if first < last:
                yield Span(start + first, start + last, span.kind)


def _between_escapes(line: bytes, start: int, end: int) -> tuple[int, int]:
    """The span without half an escape at its ends, so that JSON stays JSON."""
    if _is_half(line, start) and (escape := _ESCAPE.match(line, start - 1)):
        start = escape.end()
    while end > start and _is_half(line, end):
        end -= 1
    return start, end


def _is_half(line: bytes, at: int) -> bool:
    """Whether the character at a position belongs to a preceding backslash."""
    before = line[max(0, at - 16) : at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def secrets_in_text(text: bytes) -> Iterator[Span]:
    """Find the secrets in a line without escapes, or in a text of a few lines."""
    yield from assigned(text)
    yield from of_known_shapes(text)
    yield from random_tokens(text)
    yield from of_lists(text)
    for begin in _KEY_BEGIN.finditer(text):
        closing = _KEY_END.search(text, begin.end())
        inside = _INSIDE_KEY.match(text, begin.end())
        end = closing.start() if closing else inside.end() if inside else begin.end()
        if text[begin.end() : end].strip():
            yield Span(begin.end(), end, KEY_BLOCK.decode())


def _below(block: bytes, line: bytes, start: int, end: int) -> Iterator[Span]:
    """Find secrets in the lines below one: a private key, or the value of a name or of an option at its line's end."""
    yield from values_below(block, line, start, end)
    yield from values_of_table(block, line, start, end)
    yield from value_in_next_line(block, line, end)
    if begin := _KEY_BEGIN.search(line):
        yield from _key_lines(block, _OPENED.sub(b"", line[: begin.start()]), line[begin.end() :], end)
    elif _KEY_END.search(line) and KEY_BLOCK in line.lower():
        yield from _key_lines_above(block, start)
    elif option_at_the_end(line):
        for first, last in _lines(block, end, 1):
            place = behind_prefix(block, first, last)
            below = block[place:last].lstrip(b" \t")
            if value := rest_as_value(below, 0):
                shift = last - len(below)
                yield Span(shift + value.start, shift + value.end, value.kind)
    elif secret_is_below(line):
        for first, last in _lines(block, end, 1):
            place = behind_same_prefix(block, start, first, last)
            if (word := _WORD_ALONE.match(block, place, last)) and looks_secret(word[1]):
                yield Span(*word.span(1), KIND)
    elif _PROMPT.search(line):
        for first, last in _lines(block, end, _FIELD_LINES):
            if answer := _ANSWER.search(block, first, last):
                yield Span(*answer.span(1), "answer to a prompt")
                return
    elif refused := _REFUSED.search(line):
        name = _LAST_WORD.search(block, block.rfind(b"\n", 0, max(0, start - 1)) + 1, max(0, start - 1))
        if name and is_secret_name(name[0]):
            yield Span(start + refused.start(1), start + refused.end(1), KIND)
    elif is_secret_of_kubernetes(line):
        yield from values_of_the_manifest(block, start, end)
    elif names_a_secret(line):
        yield from _value_above(block, line, start)
        for first, last in _lines(block, end, _FIELD_LINES):
            if value := value_of_a_field(block[first:last]):
                yield Span(first + value.start, first + value.end, value.kind)
                return


def _value_above(block: bytes, line: bytes, start: int) -> Iterator[Span]:
    """Find the value of a field just above the field that names it: `- value: …`, `  name: HF_TOKEN`."""
    first = block.rfind(b"\n", 0, max(0, start - 1)) + 1
    if start and not line.lstrip().startswith(b"- ") and (value := value_of_a_field(block[first : start - 1])):
        yield Span(first + value.start, first + value.end, value.kind)


def _in_lines(text: bytes) -> Iterator[Span]:
    """Find secrets across the lines of a text that was one line with escapes."""
    arguments_end = 0
    for start, end in _lines(text, -1, _MOST_LINES):
        found, arguments_end = of_argument_lines(text, start, end, arguments_end)
        yield from found
        yield from _below(text, text[start:end], start, end)


def _lines(block: bytes, end: int, most: int) -> Iterator[tuple[int, int]]:
    """The starts and ends of the next lines after a line that ends at `end`."""
    while most and end < len(block):
        first = end + 1
        end = block.find(b"\n", first)
        end = len(block) if end < 0 else end
        if first < end:
            yield first, end
        most -= 1


def _key_lines(block: bytes, prefix: bytes, behind: bytes, end: int) -> Iterator[Span]:
    """Find the lines of a private key; other lines may be in between, since ranks print at the same time."""
    if _KEY_END.search(behind):
        return
    shape = _prefix_shape(prefix)
    others = 0
    for first, last in _lines(block, end, _KEY_LINES):
        line = block[first:last].rstrip(b"\r")
        is_own = not prefix or (len(line) >= len(prefix) and _prefix_shape(line[: len(prefix)]) == shape)
        content = line[len(prefix) :].strip(b" \t\"',|>+}])") if is_own else b""
        if is_own and _KEY_END.search(line):
            return
        if is_own and content and _KEY_LINE.fullmatch(content.removesuffix(b"\\n")):
            place = first + line.index(content, len(prefix))
            yield Span(place, place + len(content), KEY_BLOCK.decode())
        elif material := _LONG_KEY_LINE.search(line):
            yield Span(first + material.start(), first + material.end(), KEY_BLOCK.decode())
        elif is_own and content:
            others += 10
        others += 1
        if others > _OTHERS_LINES:
            return


def _prefix_shape(prefix: bytes) -> bytes:
    return re.sub(rb"[0-9]+", b"0", prefix)


def _key_lines_above(block: bytes, start: int) -> Iterator[Span]:
    """Find the lines of a key whose beginning is missing because only the end of a long log was read."""
    for _ in range(_KEY_LINES):
        first = block.rfind(b"\n", 0, max(0, start - 1)) + 1
        if first >= start:
            return
        material = re.search(rb"[A-Za-z0-9+/=]{20,}\s*$", block[first : start - 1])
        if not material:
            return
        yield Span(first + material.start(), start - 1, KEY_BLOCK.decode())
        start = first


# --- wrapped lines


_SEAM_RUN = re.compile(rb"[A-Za-z0-9+/=_.~%:@!#$^*?-]+")
_LEAST_REST = 4
_LEAST_WIDTH = 20
_LONGEST_ENDING = 120
_MOST_WRAPPED = 40


@functools.cache
def _seam_hint() -> Any:
    parts = {word[:length] for word in _SEAM_WORDS for length in range(3, len(word))}
    cut, whole = ("|".join(map(re.escape, sorted(words))) for words in (parts, _SEAM_WORDS))
    rest = r"[A-Za-z0-9_\-+/=.~%:]*"
    tokens = "|".join(map(re.escape, prefixes()))
    return compiled(
        rf"(?:(?i:(?:{whole}){rest}|(?:key|token|secret) [\[(']?[a-z0-9]{{6}}{rest}|{cut})"
        rf"|(?:{tokens})[$]?{rest}|://[^\s/@]{{8,}}|[0-9]Q~{rest}|:AA{rest}"
        rf"|(?:[a-z0-9+/]{{1,8}}[A-Z]{{1,6}}){{3}}[A-Za-z0-9+/]*)\r?\n"
    )


def _over_seams(block: bytes, found: list[Span], stretches: list[tuple[int, int]]) -> Iterator[Span]:
    """Find secrets that a terminal or a collector has wrapped: the rest of one, or one that no line has completely."""
    ends = {span.end + (block[span.end : span.end + 1] in (b"\r", b"\\")) for span in found}
    ends = {end for end in ends if block[end : end + 1] == b"\n"}
    search = _seam_hint().search
    for at, limit in stretches:
        while match := search(block, at, limit):
            ends.add(match.end() - 1)
            at = match.end()
    for end in sorted(ends):
        yield from _over_seam(block, end)


def _over_seam(block: bytes, end: int) -> Iterator[Span]:
    start = max(block.rfind(b"\n", 0, end) + 1, end - _LONG_BYTES)
    upper = block[start:end].rstrip(b"\r").removesuffix(b"\\")
    seam = len(upper)
    if seam < _LEAST_WIDTH or _ends_in_variable(upper):
        return
    joined, pieces = _joined(block, upper, start, end)
    if len(pieces) == 1:
        return
    alone = None
    limit = len(joined)
    for span in secrets_in_text(joined):
        if span.end <= seam or span.start >= limit:
            continue
        if span.start >= seam:
            # The name was cut, so that the value is not recognisable in its own line.
            alone = alone or {(one.start + seam, one.end + seam) for one in secrets_in_text(joined[seam:])}
            if (span.start, span.end) in alone:
                continue
        for first, last, place in pieces:
            here, behind = max(first, span.start), min(last, span.end)
            if here >= behind:
                continue
            is_first = here == first and first > 0
            if is_first and not _continues(joined[here:behind], joined[behind:last]):
                limit = first
                break
            if is_first and span.start == first and not looks_secret(joined[here:behind]):
                break
            yield Span(place + here - first, place + behind - first, span.kind)


_VARIABLE_AT_THE_END = re.compile(rb"=[ \t]+([A-Za-z_][\w.]{0,100})$")


def _ends_in_variable(line: bytes) -> bool:
    """Whether a line ends in a variable, which the next line does not continue: `self.password = password`."""
    variable = _VARIABLE_AT_THE_END.search(line[-_LONGEST_ENDING:])
    return variable is not None and is_name(variable[1])


def _joined(block: bytes, upper: bytes, start: int, end: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A line joined with its possible continuations; for each, start and end in the joined line, and position."""
    joined, pieces = upper, [(0, len(upper), start)]
    for first, last in _lines(block, end, _MOST_WRAPPED):
        if first != end + 1:
            break
        end = last
        place = behind_prefix(block, first, last)
        lower = block[place:last].rstrip(b"\r")
        rest = _SEAM_RUN.match(lower)
        if not rest:
            break
        pieces.append((len(joined), len(joined) + len(lower), place))
        joined += lower
        if rest.end() < len(lower):
            break
    return joined, pieces


def _continues(rest: bytes, behind: bytes) -> bool:
    """Whether the text at the start of a line may continue the end of the previous line."""
    if behind[:1] in (b":", b"(", b"=") or re.match(rb"[A-Za-z_][A-Za-z0-9_]*(?:=[^=]|:)", rest):
        return False
    has_digit = any(48 <= c < 58 for c in rest)
    both = rest.lower() != rest and rest.upper() != rest and not rest.istitle()
    return has_digit or both or (len(rest) >= _LEAST_REST and behind[:1] in (b'"', b"'", b",")) or not behind.strip()
