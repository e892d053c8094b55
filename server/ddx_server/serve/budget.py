"""What one tool result may cost a model, and how a reply is filled up to that: the most important first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_server.render.safe_text import safe

LIMIT_BYTES = 4500
"""Of the structured content as compact UTF-8 JSON: 1,500 tokens at three bytes each."""

_LONGEST_HINT = 90


def bounded(text: str, most: int = 300) -> str:
    """Text that may come out of a job: cut, and without characters that a reader does not see."""
    return safe(text, limit=most).plain


def quoted(text: str, most: int = 200) -> str:
    """The first characters of a quote, and no mark where it was cut: what is quoted can be searched for."""
    return bounded(text[:most], most)


def some(texts: Sequence[str], most: int, chars: int = 120) -> list[str]:
    """The first texts, bounded; where there are more, the last line says how many."""
    shown = [bounded(text, chars) for text in texts[:most]]
    return shown if len(texts) <= most else [*shown, f"… {len(texts)} in all"]


def json_bytes(value: Any) -> int:
    """The length of a value as compact JSON, in bytes."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


@dataclass(frozen=True)
class Rest:
    """A list that may have to be cut: how long it is, and how to get the rest of it."""

    total: int
    hint: str

    def note(self, name: str, shown: int) -> dict[str, Any]:
        """What is said where it was cut."""
        return {"what": name, "shown": shown, "total": self.total, "how": bounded(self.hint, _LONGEST_HINT)}


class Payload:
    """A reply that grows while there is room. What did not fit is told in `truncated`, with the way to get it."""

    def __init__(self, most_bytes: int = LIMIT_BYTES, **lists: Rest) -> None:
        """`lists` are those that may have to be cut. Room for saying so is kept until one is complete."""
        self._content: dict[str, Any] = {}
        self._lists = lists
        self._shown: dict[str, list[Any]] = {name: [] for name in lists}
        self._cut: set[str] = set()
        self._notes = {name: json_bytes(rest.note(name, rest.total)) + 1 for name, rest in lists.items() if rest.total}
        self._room = most_bytes - json_bytes({"truncated": []})

    @property
    def room(self) -> int:
        """Bytes that are left for what follows."""
        return self._room - sum(self._notes.values())

    def put(self, name: str, value: Any) -> bool:
        """Set a field, if it has a value and there is room for it. Says whether there was room."""
        if value in (None, "", [], {}):
            return True
        cost = json_bytes({name: value})
        if cost > self.room:
            return False
        self._content[name] = value
        self._room -= cost
        return True

    def extend(self, name: str, items: Sequence[Any]) -> int:
        """Add items to a list, in their order, up to the first for which there is no room; says how many it has now."""
        shown, total = self._shown[name], self._lists[name].total
        for item in items:
            completes = len(shown) + 1 == total
            kept = sum(cost for of, cost in self._notes.items() if not (completes and of == name))
            cost = json_bytes(item) + 1 + (0 if shown else json_bytes({name: []}))
            if name in self._cut or cost > self._room - kept:
                self._cut.add(name)
                break
            shown.append(item)
            self._content[name] = shown
            self._room -= cost
            if completes:
                self._notes.pop(name)
        return len(shown)

    def finished(self) -> dict[str, Any]:
        """The reply, with a note about every list that was cut."""
        notes = [self._lists[name].note(name, len(self._shown[name])) for name in self._notes]
        return self._content | ({"truncated": notes} if notes else {})
