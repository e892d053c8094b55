"""What one capture got from one host, and the rows that become of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model.diagnosis import Missing, ProbeStatus
from ddx_tools.model.errors import HostError
from ddx_tools.sources.host import UNKNOWN_HOST


@dataclass(frozen=True)
class RawItem:
    """A piece of raw material: bytes, what they are, and where they lie in the bundle."""

    kind: str
    """What the bytes are, in the probe's own words (`stack`, `threads`, `source`, `dump`, `log`)."""
    data: bytes
    source: str
    """Path inside the bundle: what evidence points at."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the capture knew about it: rank, pid, snapshot, path, truncated, …"""
    file: str | None = None
    """The file on this machine that holds the bytes, where they are not carried along: `data` is empty then."""


@dataclass
class Raw:
    """What one capture brought home from one host, and what it could not get."""

    host: str
    items: list[RawItem] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Failures in words: what, why, what to type. One failing rank never costs the others."""
    status: ProbeStatus = ProbeStatus.OK
    keep: list[object] = field(default_factory=list)
    """What has to live until rows are made of the items: files that came out of archives go with their owner."""

    def failed(self, what: str, error: HostError, why_it_matters: str) -> None:
        """Note, once, something that could not be read; the probe goes on with the rest."""
        self.status = ProbeStatus.PARTIAL
        if any(known.what.startswith(f"{what}: ") for known in self.missing):
            return
        self.problems.append(f"{what}: {error}")
        self.missing.append(Missing(what=f"{what}: {error.message}", why_it_matters=why_it_matters))

    @property
    def known_host(self) -> str | None:
        """The host, for rows; None of material from the user."""
        return None if self.host == UNKNOWN_HOST else self.host

    def of(self, kind: str) -> list[RawItem]:
        """The items of one kind, in capture order."""
        return [item for item in self.items if item.kind == kind]


Rows = dict[str, list[dict[str, Any]]]
"""Rows by table of `schema.sql`. Columns that a row leaves out are NULL: nothing is guessed."""


Batches = Iterable[tuple[str, Any]]
"""Rows as they come: (table, Arrow table with its columns or some of them; or dictionaries, where they are few)."""


def merge_rows(parts: Iterable[Rows]) -> Rows:
    """Rows of several captures, table by table, in order."""
    merged: Rows = {}
    for part in parts:
        for table, rows in part.items():
            merged.setdefault(table, []).extend(rows)
    return merged
