"""The page of one rank, opened by keys and loaded in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from rich.panel import Panel
from rich.text import Text

from ddx_server.render.safe_text import safe
from ddx_tools.model.errors import DdxError

_BACK, _ENTER, _ESCAPE, _QUIT = "\x7f\b", "\r\n", "\x1b", "q"
_MOST_CHARACTERS = 300


@dataclass
class Pages:
    """The open page, if any, and the rank number being typed."""

    page: Callable[[int], list[str]]
    """Returns the lines about a rank."""
    typed: str = ""
    rank: int | None = None
    is_over: bool = False
    """Whether the person has quit."""
    _lines: Future[list[str]] | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "ddx-page"))

    def press(self, keys: str) -> None:
        """Handle pressed keys: digits and Enter open a rank, Esc closes it, q quits."""
        for key in keys:
            if key.isdecimal() and key.isascii():
                self.typed = (self.typed + key)[:9]
            elif key in _BACK:
                self.typed = self.typed[:-1]
            elif key in _ENTER and self.typed:
                self.rank, self.typed = int(self.typed), ""
                self._lines = self._pool.submit(self._look, self.rank)
            elif key == _ESCAPE:
                self.rank, self.typed = None, ""
                return  # the rest is an arrow key's escape sequence
            elif key == _QUIT:
                self.is_over = True

    def close(self) -> None:
        """Stop loading pages."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def hint(self) -> str:
        """The line that says which keys can be pressed."""
        asked = f"rank {self.typed}, Enter opens it" if self.typed else "a rank number and Enter open that rank"
        return f"{asked}; {'Esc goes back; ' if self.rank is not None else ''}q ends"

    def panel(self, height: int) -> Panel:
        """The open page, cut to `height` lines."""
        lines = self._lines.result() if self._lines and self._lines.done() else [f"loading rank {self.rank} …"]
        shown = Text("\n").join(safe(line, limit=_MOST_CHARACTERS) for line in lines[:height])
        return Panel(shown, title=f"rank {self.rank}", subtitle=self.hint)

    def _look(self, rank: int) -> list[str]:
        try:
            return self.page(rank)
        except DdxError as error:
            return [error.message]
