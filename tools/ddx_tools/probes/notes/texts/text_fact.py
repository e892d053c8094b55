"""The facts that readers of texts return."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

_QUOTE_LIMIT = 240


@dataclass(frozen=True)
class TextFact:
    """One fact found in a text, as a row of `text_facts`."""

    code: str
    """A finding code, or one that begins with `_`, which `texts.findings` combines into findings."""
    line: int
    """The line number, from 1."""
    quote: str
    summary: str
    attributes: dict[str, Any] = field(default_factory=dict)
    ranks: Sequence[int] = ()
    severity: str = "notice"


def seen(code: str, number: int, line: str, summary: str, /, **attributes: Any) -> TextFact:
    """Build a fact that a line of a text shows; the line is its quote.

    `code` is that of the finding, `number` that of the line. The attributes `ranks` and `severity` become fields of the
    fact; the default severity is notice.
    """
    ranks, severity = attributes.pop("ranks", ()), attributes.pop("severity", "notice")
    return TextFact(code, number, line.strip()[:_QUOTE_LIMIT], summary, attributes, ranks, severity)


class Lines(list[str]):
    """The lines of a text, which can be tested for a pattern all at once."""

    @cached_property
    def _text(self) -> bytes:
        return "\n".join(self).encode("utf-8", "replace")

    def may_hold(self, pattern: re.Pattern[str]) -> bool:
        """Return False if no line matches; a hundred times faster than trying each line."""
        searched = _searched_at_once(pattern)
        return searched is None or searched.search(self._text) is not None


@cache
def _searched_at_once(pattern: re.Pattern[str]) -> Any:
    """The pattern compiled for RE2; None if it uses something RE2 lacks, such as a lookahead."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not pattern.flags & re.IGNORECASE
    try:
        return re2.compile(f"(?m){pattern.pattern}".encode(), options)
    except re2.error:
        return None


def matches(pattern: re.Pattern[str], lines: Lines) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the first match in each line, with the line number."""
    for number, line in enumerate(lines, 1) if lines.may_hold(pattern) else ():
        if found := pattern.search(line):
            yield number, found
