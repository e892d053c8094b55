"""What a reader of a text says that it saw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_QUOTE_LIMIT = 240


@dataclass(frozen=True)
class Said:
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


def seen(code: str, number: int, line: str, summary: str, /, **attributes: Any) -> Said:
    """With the words of a line; `ranks` and `severity` among the attributes are taken out of them."""
    ranks, severity = attributes.pop("ranks", ()), attributes.pop("severity", "notice")
    return Said(code, number, line.strip()[:_QUOTE_LIMIT], summary, attributes, ranks, severity)


def matches(pattern: re.Pattern[str], lines: Sequence[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """The first match of each line, with its number."""
    for number, line in enumerate(lines, 1):
        if found := pattern.search(line):
            yield number, found
