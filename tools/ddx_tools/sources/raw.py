"""The result of one capture on one host, and the rows made from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model.diagnosis import Missing, ProbeStatus
from ddx_tools.model.errors import HostError
from ddx_tools.sources.host import UNKNOWN_HOST


@dataclass(frozen=True)
class RawItem:
    """A piece of raw material: its bytes, their kind, and their path in the bundle."""

    kind: str
    """The kind of the bytes, in the probe's terms (`stack`, `threads`, `source`, `dump`, `log`)."""
    data: bytes
    source: str
    """Path inside the bundle, used in evidence."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts known at capture: rank, pid, snapshot, path, truncated, …"""
    file: str | None = None
    """The file on this machine that holds the bytes, if they are not in memory; `data` is then empty."""


@dataclass
class Raw:
    """The items that one capture got from one host, and what it could not get."""

    host: str
    items: list[RawItem] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Failures in words: what, why, what to type. A failure on one rank does not affect the others."""
    status: ProbeStatus = ProbeStatus.OK
    keep: list[object] = field(default_factory=list)
    """Objects that must live until the items are parsed: unpacked files are deleted with their owner."""

    def failed(self, what: str, error: HostError, why_it_matters: str) -> None:
        """Record, once, something that could not be read; the probe continues with the rest."""
        self.status = ProbeStatus.PARTIAL
        if any(known.what.startswith(f"{what}: ") for known in self.missing):
            return
        self.problems.append(f"{what}: {error}")
        self.missing.append(Missing(what=f"{what}: {error.message}", why_it_matters=why_it_matters))

    @property
    def known_host(self) -> str | None:
        """The host name for rows; None for the user's files."""
        return None if self.host == UNKNOWN_HOST else self.host

    def of(self, kind: str) -> list[RawItem]:
        """The items of one kind, in capture order."""
        return [item for item in self.items if item.kind == kind]


Rows = dict[str, list[dict[str, Any]]]
"""Rows by table of `schema.sql`. Missing columns are NULL: nothing is guessed."""


Batches = Iterable[tuple[str, Any]]
"""Rows in batches: (table, Arrow table with some or all of its columns, or dictionaries if they are few)."""


def merge_rows(parts: Iterable[Rows]) -> Rows:
    """Merge the rows of several captures, table by table, in order."""
    merged: Rows = {}
    for part in parts:
        for table, rows in part.items():
            merged.setdefault(table, []).extend(rows)
    return merged
