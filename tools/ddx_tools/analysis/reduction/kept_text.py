"""The texts of a case and their kept lines, as stored in the evidence store."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

_MOST_LINES = 40_000
_SMALL_BYTES = 2_500
_WHOLE_LINES = 120
"""The same limit as in `ddx_tools.parsers.lines.kept_lines`."""


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A kept line, verbatim, with how often its template occurs."""

    number: int
    text: str
    template: str
    times: int
    """How many lines of its text have the same template."""
    alike: int
    """The same, including lines that differ only in varying words."""
    rarity: float
    known: bool


@dataclass(frozen=True)
class KeptText:
    """A text of the case, and the lines that were kept of it."""

    path: str
    source: str
    count: int
    """Number of lines in the whole text."""
    is_note: bool
    is_log: bool
    size_bytes: int | None
    lines: list[KeptLine] = field(default_factory=list)

    @cached_property
    def by_number(self) -> dict[int, KeptLine]:
        """The kept lines by number; if not all lines were kept, what is between them is unknown."""
        return {line.number: line for line in self.lines}

    @property
    def name(self) -> str:
        """File name of the text."""
        return PurePosixPath(self.path).name

    @property
    def host(self) -> str:
        """The host that it was captured on; empty for the user's files."""
        parts = self.source.split("/")
        return parts[1] if parts[0] == "raw" and len(parts) > 2 else ""

    @property
    def is_whole(self) -> bool:
        """Whether all its lines were kept, except empty ones."""
        return len(self.lines) >= self.count or self.count <= _WHOLE_LINES

    @property
    def is_small(self) -> bool:
        """Whether it is short enough that a person must have chosen its contents."""
        return (self.size_bytes or 0) <= _SMALL_BYTES


def kept_texts(store: Store) -> list[KeptText]:
    """Read all texts with kept lines, in path order."""
    rows = store.query(f"SELECT * FROM kept_lines ORDER BY path, source, line LIMIT {_MOST_LINES}")
    return texts_of(rows, store.query("SELECT path, kinds, size_bytes FROM materials") if rows else [])


def texts_of(rows: list[dict[str, Any]], materials: list[dict[str, Any]]) -> list[KeptText]:
    """Build texts from rows of `kept_lines` and `materials`."""
    known = {row["path"]: row for row in materials}
    lines: dict[tuple[str, str], list[KeptLine]] = defaultdict(list)
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["path"], row["source"]
        counts[key] = row["lines"]
        lines[key].append(
            KeptLine(row["line"], row["text"], row["template"], row["times"], row["alike"], row["rarity"], row["known"])
        )
    texts = []
    seen = set()
    for (path, source), kept in lines.items():
        # A file that several hosts share, or that was read twice, counts as one text.
        content = path, counts[path, source], tuple(line.text for line in kept)
        if content in seen:
            continue
        seen.add(content)
        material = known.get(path, {})
        kinds = (material.get("kinds") or "").split(", ")
        is_note, is_log = "note" in kinds, "log" in kinds
        texts.append(KeptText(path, source, counts[path, source], is_note, is_log, material.get("size_bytes"), kept))
    by_path = gathered((text.path, text) for text in texts)
    return [text for text in texts if not any(_continues(other, text) for other in by_path[text.path])]


def _continues(later: KeptText, earlier: KeptText) -> bool:
    """Whether one reading of a file is of the same file after it grew."""
    if later.count <= earlier.count or later.host != earlier.host:
        return False
    both = later.by_number.keys() & earlier.by_number.keys()
    return bool(both) and all(later.by_number[number].text == earlier.by_number[number].text for number in both)
