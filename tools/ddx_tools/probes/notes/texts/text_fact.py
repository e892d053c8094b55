"""What a reader of a text says that it saw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

_QUOTE_LIMIT = 240


@dataclass(frozen=True)
class TextFact:
    """One thing seen in a text, as `text_facts` keeps it."""

    code: str
    """A finding code; or one that begins with `_`, of which `texts.findings` puts findings together."""
    line: int
    """1-based."""
    quote: str
    summary: str
    attributes: dict[str, Any] = field(default_factory=dict)
    ranks: Sequence[int] = ()
    severity: str = "notice"


def seen(code: str, number: int, line: str, summary: str, /, **attributes: Any) -> TextFact:
    """With the words of a line; `ranks` and `severity` among the attributes are taken out of them."""
    ranks, severity = attributes.pop("ranks", ()), attributes.pop("severity", "notice")
    return TextFact(code, number, line.strip()[:_QUOTE_LIMIT], summary, attributes, ranks, severity)


class Lines(list[str]):
    """The lines of a text, asked all at once whether one of them may match."""

    @cached_property
    def _text(self) -> bytes:
        return "\n".join(self).encode("utf-8", "replace")

    def may_hold(self, pattern: re.Pattern[str]) -> bool:
        """False if no line matches; it takes a hundredth of the time of trying each of them."""
        searched = _searched_at_once(pattern)
        return searched is None or searched.search(self._text) is not None


@cache
def _searched_at_once(pattern: re.Pattern[str]) -> Any:
    """The pattern in RE2; None if it has what RE2 has not, like a look ahead."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not pattern.flags & re.IGNORECASE
    try:
        return re2.compile(f"(?m){pattern.pattern}".encode(), options)
    except re2.error:
        return None


def matches(pattern: re.Pattern[str], lines: Lines) -> Iterator[tuple[int, re.Match[str]]]:
    """The first match of each line, with its number."""
    for number, line in enumerate(lines, 1) if lines.may_hold(pattern) else ():
        if found := pattern.search(line):
            yield number, found
