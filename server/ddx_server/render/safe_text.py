"""Text out of a job, made harmless for a terminal: bounded, and without control characters."""

from __future__ import annotations

import re

from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def safe(text: str, style: str = "", limit: int = 600) -> Text:
    """Plain text for rich: no markup is interpreted, no escape sequence survives."""
    cleaned = _CONTROL.sub("�", text.replace("\t", "    "))
    return Text(cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…", style=style)
