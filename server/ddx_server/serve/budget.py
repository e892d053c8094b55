"""The size limit of a tool result, and how a reply is filled up to it, most important fields first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_server.render.safe_text import safe

LIMIT_BYTES = 4500
"""Limit on the structured content as compact UTF-8 JSON: 1,500 tokens at three bytes each."""

_LONGEST_HINT = 90


def bounded(text: str, most: int = 300) -> str:
    """Text that may come from a job, cut to `most` characters and without invisible ones."""
    return safe(text, limit=most).plain


def quoted(text: str, most: int = 200) -> str:
    """The first characters of a quote, without a mark where it is cut, so that it can be searched for."""
    return bounded(text[:most], most)


def some(texts: Sequence[str], most: int, chars: int = 120) -> list[str]:
    """The first `most` texts, each bounded; if there are more, a last line gives the total."""
    shown = [bounded(text, chars) for text in texts[:most]]
    return shown if len(texts) <= most else [*shown, f"… {len(texts)} in total"]


def json_bytes(value: Any) -> int:
    """The length of a value as compact JSON, in bytes."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


@dataclass(frozen=True)
class Rest:
    """A list that may have to be cut: its full length, and how to get the rest."""

    total: int
    hint: str

    def note(self, name: str, shown: int) -> dict[str, Any]:
        """Return the entry of `truncated` for the list `name`, which was cut after `shown` items.

        It has the list's name, the shown and total numbers of items, and how to get the rest.
        """
        return {"what": name, "shown": shown, "total": self.total, "how": bounded(self.hint, _LONGEST_HINT)}


class Payload:
    """A reply that is filled while there is room. `truncated` says what did not fit and how to get it."""

    def __init__(self, most_bytes: int = LIMIT_BYTES, **lists: Rest) -> None:
        """`lists` are those that may have to be cut. Room for a note about each is reserved until it is complete."""
        self._content: dict[str, Any] = {}
        self._lists = lists
        self._shown: dict[str, list[Any]] = {name: [] for name in lists}
        self._cut: set[str] = set()
        self._notes = {name: json_bytes(rest.note(name, rest.total)) + 1 for name, rest in lists.items() if rest.total}
        self._room = most_bytes - json_bytes({"truncated": []})

    @property
    def room(self) -> int:
        """The number of bytes left."""
        return self._room - sum(self._notes.values())

    def put(self, name: str, value: Any) -> bool:
        """Set a field if it has a value and there is room; return whether there was room."""
        if value in (None, "", [], {}):
            return True
        cost = json_bytes({name: value})
        if cost > self.room:
            return False
        self._content[name] = value
        self._room -= cost
        return True

    def extend(self, name: str, items: Sequence[Any]) -> int:
        """Add items to a list in order, up to the first that does not fit; return the list's new length."""
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
        """The complete reply, with a note about every list that was cut."""
        notes = [self._lists[name].note(name, len(self._shown[name])) for name in self._notes]
        return self._content | ({"truncated": notes} if notes else {})
