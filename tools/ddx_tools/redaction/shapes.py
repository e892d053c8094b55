"""Finds tokens with a known shape (`knowledge/secret_shapes.yaml`), and long random tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import re2

from ddx_tools.knowledge.load import shipped
from ddx_tools.redaction.patterns import compiled, compiled_words

_TAIL_BYTES = 8
"""The number of a token's bytes in the first search."""
RANDOM = r"(?:[a-z0-9+/]{1,8}[A-Z]{1,6}){5}"
"""Matches most random tokens of 32 or more characters, and few words."""

_OTHER_HINT = (
    r"://[^\s@]{1,300}@|(?i:bearer[ \t])|Basic [A-Za-z0-9+/]{8}|[?&](?i:sig|signature|key|auth|sign|code|hmac"
    r"|session|ticket|policy|appid|st|t|q-ak|x-\w{2,8}-\w+)="
    r"|(?i:expect\b.{0,80}ass(?:word|phrase|code))|input_value="
    r"|(?i:PRIVATE KEY|Private-Lines|OpenVPN Static)|(?i:<add key)|\\u00(?:[2-7]|1b|00)|\\x(?:[2-7]|1b)|\\033|&#"
    r"|(?:\\u[0-9a-f]{4}|\\x[8-9ab][0-9a-f])[a-z]{0,6}[\\\"']{0,4}\s?[:=]|\\uff1a|\\xef\\xbc\\x9a|(?i:%3a%2f%2f)"
)

_LEAST_RANDOM = 32
_LEAST_TURNS = 0.45
_MOST_IN_WORDS = 0.45
_WORD_RUN = 4
_LEAST_LETTERS = 0.12
"""The least share of letters of each case."""
_LEAST_DIGITS = 1
_MARKED = (b"<redacted", b"redacted>")
_DIGEST_BEFORE = re.compile(
    rb"(?i)(?:sha\d{1,3}|md5|digest|checksum|fingerprint|hash|integrity|etag|host_?id|amz-id-2)[\"']?[\s:=@_-]{0,4}[\"']?$"
)
_TOKEN_CHARACTERS = compiled(rf"[A-Za-z0-9+/_-]{{{_LEAST_RANDOM},}}={{0,2}}")
_LETTERS = re.compile(rb"[A-Za-z0-9]{%d,}" % _LEAST_RANDOM)
_PATH_PART = re.compile(rb"[^/]+")
_CLASSES = bytes(
    ord("a" if 97 <= c < 123 else "A" if 65 <= c < 91 else "0" if 48 <= c < 58 else "-") for c in range(256)
)
_RUNS = re.compile(rb"a+|A+|0+|-+")


class Span(NamedTuple):
    """A secret in a line: its start, its end, its kind."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class _Shape:
    kind: str
    expression: str
    hints: tuple[bytes, ...]
    mixed: bool = False

    @functools.cached_property
    def pattern(self) -> Any:
        """The expression, compiled only once a hint occurs: compiling all takes longer than searching a small log."""
        return compiled(self.expression)


@functools.cache
def _described() -> dict[str, Any]:
    described: dict[str, Any] = shipped("secret_shapes.yaml")
    return described


@functools.cache
def _shapes() -> list[_Shape]:
    shapes = [_family(described) for described in _described()["families"]]
    shapes += [_command(described) for described in _described()["commands"]]
    for other in _described()["others"]:
        hints = tuple(hint.lower().encode() for hint in other["hints"])
        shapes.append(_Shape(other["kind"], other["pattern"], hints, other.get("mixed", False)))
    return shapes


@functools.cache
def _hints_of_shapes() -> tuple[Any, list[list[int]]]:
    """All hints as one expression, and for each hint the numbers of its shapes."""
    shapes_of: dict[bytes, list[int]] = {}
    for number, shape in enumerate(_shapes()):
        for hint in shape.hints:
            shapes_of.setdefault(hint, []).append(number)
    return compiled_words(shapes_of), list(shapes_of.values())


def _command(described: dict[str, Any]) -> _Shape:
    programs, value = described["programs"], described.get("value", r"[^\s\"']+")
    pattern = rf"\b(?:{'|'.join(programs)})\b(?:[^\n]{{0,900}}?\s)??{described['before']}[\"']?({value})"
    return _Shape("password on a command line", pattern, tuple(program.encode() for program in programs))


def _family(described: dict[str, Any]) -> _Shape:
    prefixes = "|".join(map(re2.escape, described["prefixes"]))
    # The longest match is taken, so that a token is redacted completely.
    token = f"((?:{prefixes})[{described['body']}]{{{described['least']},}}=*)"
    before = "" if described.get("anywhere") else "(?:^|[^A-Za-z0-9])"
    hints = tuple(prefix.lower().encode() for prefix in described["prefixes"])
    return _Shape(described["kind"], before + token, hints, described.get("mixed", False))


def prefixes() -> list[str]:
    """The prefixes of tokens of known families."""
    return [prefix for family in _described()["families"] for prefix in family["prefixes"]]


def program_names() -> list[str]:
    """The programs that take a password as an argument."""
    return [program for command in _described()["commands"] for program in command["programs"]]


def _hint() -> str:
    """An expression that matches wherever a shape may begin."""
    begin = "|".join(map(re2.escape, prefixes()))
    others = [one.get("first") or f"(?i:{'|'.join(map(re2.escape, one['hints']))})" for one in _described()["others"]]
    programs = "|".join(program_names())
    return rf"(?:{begin})[A-Za-z0-9_.+/=~:$%,-]{{{_TAIL_BYTES}}}|(?:\b|\\[nrt])(?:{programs})[ \t]|{'|'.join(others)}"


def shape_expression() -> str:
    """An expression that matches in each line that holds a shape, a random token, a URL's password or a key block."""
    return f"{_OTHER_HINT}|{_hint()}|{RANDOM}"


@functools.cache
def shape_hint() -> Any:
    """`shape_expression`, compiled."""
    return compiled(shape_expression())


def of_known_shapes(line: bytes) -> Iterator[Span]:
    """Find the tokens of known shapes in a line."""
    if not shape_hint().search(line):
        return
    words, shapes_of = _hints_of_shapes()
    shapes = _shapes()
    for number in sorted({shape for word in words.Match(line) or () for shape in shapes_of[word]}):
        shape = shapes[number]
        for match in shape.pattern.finditer(line):
            group = 1 if match.re.groups and match.start(1) >= 0 else 0
            if match[group].startswith(_MARKED):
                continue
            if not shape.mixed or _is_mixed(match[group]):
                yield Span(match.start(group), match.end(group), shape.kind)


def _is_mixed(token: bytes) -> bool:
    body = token[3:]
    return any(48 <= c < 58 for c in body) or (body != body.lower() and body != body.upper())


def random_tokens(line: bytes) -> Iterator[Span]:
    """Find long random tokens: capitals, small letters and digits in no order, as no person or compiler writes them."""
    for run in _TOKEN_CHARACTERS.finditer(line):
        parts = [(run.start() + part.start(), run.start() + part.end()) for part in _PATH_PART.finditer(run[0])]
        tokens = [part for part in parts if part[1] - part[0] >= _LEAST_RANDOM] or [run.span()]
        tokens += [(run.start() + part.start(), run.start() + part.end()) for part in _LETTERS.finditer(run[0])]
        for start, end in tokens:
            if is_random(line[start:end]) and not _DIGEST_BEFORE.search(line[max(0, start - 24) : start]):
                yield Span(start, end, "random token")


def is_random(token: bytes) -> bool:
    """Whether letters and digits are mixed at random."""
    classes = token.translate(_CLASSES)
    small, capital, digits = (classes.count(c) for c in b"aA0")
    if min(small, capital) < _LEAST_LETTERS * len(token) or digits < _LEAST_DIGITS:
        return False
    runs = [len(run) for run in _RUNS.findall(classes)]
    in_words = sum(run for run in runs if run >= _WORD_RUN)
    return len(runs) - 1 >= _LEAST_TURNS * len(token) and in_words <= _MOST_IN_WORDS * len(token)


def merged_spans(spans: list[Span]) -> list[Span]:
    """Sort spans by position and merge overlapping ones."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(span.end, merged[-1].end))
        else:
            merged.append(span)
    return merged
