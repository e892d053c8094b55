"""The size that a rank without a record brought, as far as its abort tells it.

Gloo aborts a process that receives another size than it expects, before it can write a record. Both sizes in its last
words are of one part of the tensor, so their ratio is that of the whole sizes (gloo/transport/tcp/pair.cc).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.analysis.collectives.records.records import Entry, Group, Records


@dataclass(frozen=True)
class Aborted:
    """A rank that was aborted in a collective, and whose size it had."""

    rank: int
    like: int
    """A recorded rank that brought the size that the aborted one expected."""
    received_bytes: int
    expected_bytes: int

    @property
    def words(self) -> str:
        """Where its size is from."""
        return f"Rank {self.rank} left no record; it was aborted where {self.expected_bytes} bytes fitted and " + (
            f"{self.received_bytes} came, which is the ratio of these sizes."
        )


def aborted_in(records: Records, group: Group, entries: Mapping[int, Entry]) -> Aborted | None:
    """The only member without a record, if the log holds one such abort and two of the recorded sizes fit it."""
    silent = [rank for rank in group.members or () if rank not in records.ranks]
    aborts = {
        (int(details["received_bytes"]), int(details["expected_bytes"]))
        for row in records.query("SELECT DISTINCT details FROM log_events WHERE code = 'gloo_size_mismatch'")
        if {"received_bytes", "expected_bytes"} <= (details := json.loads(row["details"] or "{}")).keys()
    }
    if len(silent) != 1 or len(aborts) != 1:
        return None
    ((received_bytes, expected_bytes),) = aborts
    if not received_bytes or not expected_bytes:
        return None
    sizes = {rank: sum(json.loads(elements(entry.input_sizes) or "[]")) for rank, entry in entries.items()}
    fitting = {
        own: rank
        for rank, own in sorted(sizes.items(), reverse=True)
        if own and any(own * received_bytes == other * expected_bytes for other in sizes.values() if other)
    }
    if len(fitting) != 1:
        return None
    return Aborted(silent[0], next(iter(fitting.values())), received_bytes, expected_bytes)
