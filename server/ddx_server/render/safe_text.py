"""Makes text from a job harmless for a terminal: bounded, without secrets and control characters."""

from __future__ import annotations

import unicodedata

from rich.text import Text

# Terminal controls; characters that change the text direction or are invisible (and could hide words from a person but
# not from an agent); lone surrogates, which no output encoding can hold; line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def safe(text: str, style: str = "", limit: int = 600) -> Text:
    """Plain text for rich: markup is not interpreted, and no escape sequence survives.

    Lines after the first are indented, so that no text from a job can pose as a line of ours.
    """
    from ddx_tools.redaction.text import redact

    text = redact(text)  # before cutting and layout: half a secret is not recognised
    bounded = text if len(text) <= limit else text[: limit - 1] + "…"
    return Text("".join(map(_shown, bounded)), style=style)


def verbatim(text: str) -> str:
    """Lines from a job, verbatim except for secrets and invisible characters."""
    from ddx_tools.redaction.text import redact

    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else "�" for c in redact(text))


def harmless(text: str) -> str:
    """Text from a job, for output that lays out lines itself: no secrets, no control or invisible characters."""
    from ddx_tools.redaction.text import redact

    return "".join(character if character == "\n" else _shown(character) for character in redact(text))


def _shown(character: str) -> str:
    if character == "\n":
        return "\n    "
    if character == "\t":
        return "    "
    return "�" if unicodedata.category(character) in _HIDDEN else character
