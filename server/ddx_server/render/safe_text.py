"""Text out of a job, made harmless for a terminal: bounded, and without control characters."""

from __future__ import annotations

import re

from rich.text import Text

# Terminal controls; line ends that a terminal may follow; what turns the direction of text or cannot be seen
# (and could hide words from a person that an agent reads); half characters, which no output encoding can hold.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    r"\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f"
    r"\ud800-\udfff]"
)


def safe(text: str, style: str = "", limit: int = 600) -> Text:
    """Plain text for rich: no markup is interpreted, no escape sequence survives.

    Further lines are indented, so that nothing out of a job can pose as a line of ours.
    """
    bounded = text if len(text) <= limit else text[: limit - 1] + "…"
    return Text(_CONTROL.sub("�", bounded.replace("\t", "    ")).replace("\n", "\n    "), style=style)
