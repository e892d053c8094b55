"""Text out of a job, made harmless for a terminal: bounded, without secrets and control characters."""

from __future__ import annotations

import unicodedata

from rich.text import Text

# Terminal controls; what turns the direction of text or cannot be seen (and could hide words from a person that an
# agent reads); half characters, which no output encoding can hold; line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, style: str = "", limit: int = 600) -> Text:
    """Plain text for rich: no markup is interpreted, no escape sequence survives.

    Further lines are indented, so that nothing out of a job can pose as a line of ours.
    """
    from ddx_tools.redaction.text import redact

    text = redact(text)  # before it is cut and laid out: half a secret looks like none
    bounded = text if len(text) <= limit else text[: limit - 1] + "…"
    return Text("".join(map(_shown, bounded)), style=style)


def verbatim(text: str) -> str:
    """Lines out of a job as they stand there, without secrets and what a reader does not see."""
    from ddx_tools.redaction.text import redact

    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else "�" for c in redact(text))


def harmless(text: str) -> str:
    """Text out of a job for a place that lays out lines by itself: no secrets, no character that steers or hides."""
    from ddx_tools.redaction.text import redact

    return "".join(character if character == "\n" else _shown(character) for character in redact(text))


def _shown(character: str) -> str:
    if character == "\n":
        return "\n    "
    if character == "\t":
        return "    "
    return "�" if unicodedata.category(character) in _HIDDEN else character
