"""Words of a shell script, as far as the text alone tells them.

Covers what launch scripts are made of (POSIX shell and bash: quotes, continuations, comments, here-documents,
`$NAME`, `${NAME:-default}`, arrays, `$((sums))`). Nothing is executed. What a command, a positional parameter or a
variable of unknown value would give stays a hole in the word, which `shown` writes as the script has it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddx_tools.formats.shell_sums import calculated

HOLE, HOLE_END = "\ue000", "\ue001"
"""Around the text of what is not known, inside a word (private-use characters: taken out of what comes in)."""

_HOLE = re.compile(f"{HOLE}([^{HOLE_END}]*){HOLE_END}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<all>\[[@*]\])?\}")
_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()#\ue000\ue001]+")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_OPERATORS = ("&&", "||", ";;", ">>", "<<", ">&", "<&", "&>", ";", "&", "|", "<", ">", "(", ")", "\n")
_HEREDOC_CHARS = 200_000
"""Gone through for the ends of all here-documents together."""
_SKIP_LIMIT = 4_000
"""Characters of one quoted or bracketed piece: what is longer is no launch command."""
_MOST_PIECES = 500
"""Of one word; what comes behind is read and left out."""
_VALUE_CHARS = 4_000
_MOST_WORDS = 2_000
"""Of one expansion: a script may double a variable again and again."""


Values = Mapping[str, "str | tuple[str, ...]"]
"""Variables so far: text, or the words of an array. A name that is not there is unknown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a word."""

    kind: Literal["text", "variable", "array", "sum", "unknown"]
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Token:
    """A word (with its pieces), an operator, or an array of words in brackets."""

    line: int
    operator: str = ""
    pieces: tuple[Piece, ...] = ()


def shown(text: str) -> str:
    """A word for a reader: what is not known as the script has it."""
    return _HOLE.sub(r"\1", text)


def is_known(text: str) -> bool:
    """Whether nothing of a word is unknown."""
    return HOLE not in text


def tokens(text: str, first_line: int = 1) -> Iterator[Token]:
    """The tokens of a script. Any text will do."""
    clean = text.replace(HOLE, "").replace(HOLE_END, "").replace("\r\n", "\n").replace("\0", "")
    return _Reader(clean, first_line).tokens()


class _Reader:
    def __init__(self, text: str, line: int) -> None:
        self._text = text
        self._at = 0
        self._line = line
        self._heredocs: list[str] = []
        self._heredoc_chars = _HEREDOC_CHARS

    def tokens(self) -> Iterator[Token]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r\f\v":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._skip(2)
            elif char == "#":
                self._at = self._end_of_line()
            elif heredoc := self._heredoc():
                self._heredocs.append(heredoc)
            elif operator := self._operator():
                yield Token(self._line, operator)
                self._skip(len(operator))
                if operator == "\n":
                    self._pass_heredocs()
            else:
                line = self._line
                pieces = list(itertools.islice(word := self._word(), _MOST_PIECES))
                for _ in word:
                    pass
                yield Token(line, pieces=tuple(pieces))

    def _skip(self, count: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _operator(self) -> str:
        return next((operator for operator in _OPERATORS if self._text.startswith(operator, self._at)), "")

    def _heredoc(self) -> str | None:
        if not self._text.startswith("<<", self._at) or self._text.startswith("<<<", self._at):
            return None
        found = _HEREDOC.match(self._text, self._at)
        if found:
            self._skip(found.end() - self._at)
        return found[2] if found else None

    def _pass_heredocs(self) -> None:
        """Over the bodies of here-documents: they are input of a command, not the script."""
        for end in self._heredocs[:4]:
            limit = min(len(self._text), self._at + self._heredoc_chars)
            before = start = self._at
            while start < limit:
                stop = self._text.find("\n", start, limit)
                stop = limit if stop < 0 else stop
                if self._text[start:stop].lstrip("\t") == end:
                    self._skip(stop - self._at)
                    break
                start = stop + 1
            self._heredoc_chars -= min(start, limit) - before
        self._heredocs.clear()

    def _word(self) -> Iterator[Piece]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r\f\v\n" or (char != "#" and self._operator()):
                return
            if plain := _PLAIN.match(self._text, self._at):
                self._at = plain.end()
                yield Piece("text", plain[0], False)
            elif char == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                self._skip(2)
                if escaped != "\n":
                    yield Piece("text", escaped, True)
            elif char in "'\"":
                yield from self._quoted(char)
            elif char in "$`":
                yield self._expansion(False)
            else:  # a "#" inside a word, and what else is nothing special here
                self._at += 1
                yield Piece("text", char, False)

    def _quoted(self, quote: str) -> Iterator[Piece]:
        end = self._text.find(quote, self._at + 1, self._at + 1 + _SKIP_LIMIT)
        if end < 0:
            self._at += 1
            yield Piece("text", quote, True)
            return
        if quote == "'":
            content = self._text[self._at + 1 : end]
            self._skip(end + 1 - self._at)
            yield Piece("text", content, True)
            return
        self._at += 1
        yield Piece("text", "", True)  # "" is a word, too
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                self._skip(2)
                if following != "\n":
                    yield Piece("text", following if following in '$`"\\' else f"\\{following}", True)
            elif char in "$`":
                yield self._expansion(True)
            else:
                start = self._at
                while self._at < len(self._text) and self._text[self._at] not in '"\\$`':
                    self._at += 1
                self._line += self._text.count("\n", start, self._at)
                yield Piece("text", self._text[start : self._at], True)
        self._at += 1

    def _expansion(self, quoted: bool) -> Piece:
        """At a `$` or a backtick."""
        start = self._at
        text = self._text
        if text[start] == "`":
            return self._unknown(self._closing("`", "`", start + 1), quoted)
        if text.startswith("$((", start) and (end := text.find("))", start, start + _SKIP_LIMIT)) >= 0:
            self._skip(end + 2 - start)
            return Piece("sum", text[start:end][3:], quoted)
        if text.startswith("$(", start):
            return self._unknown(self._closing("(", ")", start + 2), quoted)
        if braced := _BRACED.match(text, start + 1):
            self._at = braced.end()
            return Piece("array" if braced["all"] else "variable", braced["name"], quoted)
        if text.startswith("${", start):
            return self._unknown(self._closing("{", "}", start + 2), quoted)
        if name := _NAME.match(text, start + 1):
            self._at = name.end()
            return Piece("variable", name[0], quoted)
        if text[start + 1 : start + 2] in tuple("0123456789@*#?!$-"):
            return self._unknown(start + 2, quoted)
        self._at += 1
        return Piece("text", "$", quoted)

    def _unknown(self, end: int, quoted: bool) -> Piece:
        start = self._at
        self._skip(end - start)
        return Piece("unknown", self._text[start:end], quoted)

    def _closing(self, opening: str, closing: str, at: int) -> int:
        """Behind the bracket that closes; a bounded way on if none does."""
        depth = 1
        for place in range(at, min(len(self._text), at + _SKIP_LIMIT)):
            char = self._text[place]
            if char == closing:
                depth -= 1
                if not depth:
                    return place + 1
            elif char == opening:
                depth += 1
        end = self._text.find("\n", at)
        return min(len(self._text) if end < 0 else end, at + _SKIP_LIMIT)


def expand(pieces: tuple[Piece, ...], values: Values) -> list[str]:
    """The words that one word of the script becomes: unquoted variables are split, arrays give a word each."""
    words: list[str] = [""]
    seen = False
    for piece in pieces:
        if piece.kind == "array":
            held = values.get(piece.text)
            parts = [held] if isinstance(held, str) else list(held or ())
            parts = parts if held is not None else [_hole(f"${{{piece.text}[@]}}")]
            words[-1] += parts[0] if parts else ""
            words += parts[1:]
            seen = seen or bool(parts)
            continue
        text = _value(piece, values)
        if piece.kind == "variable" and not piece.quoted:
            split = text.split()
            if not split:
                continue
            words[-1] += split[0]
            words += split[1:]
        else:
            words[-1] += text
        seen = seen or piece.quoted or bool(text)
    return [word[:_VALUE_CHARS] for word in words[:_MOST_WORDS]] if seen else []


def as_value(pieces: tuple[Piece, ...], values: Values) -> str:
    """The text that an assignment gives to its variable: nothing is split."""
    text = "".join(_value(piece, values) for piece in pieces)
    return text if len(text) <= _VALUE_CHARS else _hole("too long")


def _value(piece: Piece, values: Values) -> str:
    if piece.kind == "text":
        return piece.text
    if piece.kind == "unknown":
        return _hole(piece.text)
    if piece.kind == "sum":
        total = calculated(piece.text, values)
        return _hole(f"$(({piece.text}))") if total is None else str(total)
    held = values.get(piece.text)
    if held is None:
        return _hole(f"${piece.text}")
    return held if isinstance(held, str) else " ".join(held[:1] if piece.kind == "variable" else held)


def _hole(text: str) -> str:
    return f"{HOLE}{' '.join(shown(text).split())[:100]}{HOLE_END}"
