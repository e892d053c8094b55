"""What the person at the terminal sees of an investigation while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_CHARS = 300


class Display:
    """Prints the model's text as it arrives, and one line per call and result; prints nothing without a console."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._in_words = False

    def words(self, words: str) -> None:
        """Print a piece of the model's text."""
        if self._console:
            self._console.print(
                safe(words if self._in_words else f"    {words}", limit=len(words) + 4), end="", soft_wrap=True
            )
        self._in_words = True

    def end_of_words(self) -> None:
        """End the line after the model's text, so that what follows starts a new one."""
        if self._console and self._in_words:
            self._console.print()
        self._in_words = False

    def calling(self, name: str, arguments: object) -> None:
        """Print a tool call."""
        self._line(f"→ {call_in_words(name, arguments)}", "cyan")

    def answered(self, name: str, text: str, is_error: bool) -> None:
        """Print a tool's answer, shortened to one line."""
        self._line(f"← {name}: {_gist(text)}", "red" if is_error else "dim")

    def note(self, words: str) -> None:
        """Print a note about the investigation itself."""
        self._line(words, "yellow")

    def _line(self, words: str, style: str) -> None:
        if self._console:
            self._console.print(safe(" ".join(words.split()), style, limit=_SHOWN_CHARS), soft_wrap=True)


def call_in_words(name: str, arguments: object) -> str:
    """Format a tool call as one line: `stacks target=["4242"] looks=2`."""
    if not isinstance(arguments, Mapping):
        return f"{name} {arguments!r}"
    shown = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return " ".join([name, *shown])


def _gist(text: str) -> str:
    """The sentence that sums up a result, or the beginning of the result."""
    try:
        whole: Any = json.loads(text)
    except ValueError:
        return text
    if not isinstance(whole, dict):
        return text
    return str(whole.get("headline") or whole.get("untrusted_summary") or whole.get("untrusted_error") or text)
