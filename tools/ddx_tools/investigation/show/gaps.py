"""Drops gaps that another source fills."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Missing

_HELD = (
    (re.compile(r"flight record of rank (\d+)"), "SELECT DISTINCT rank FROM fr_dumps WHERE entries > 0"),
    (re.compile(r"^(?:stack of )?rank (\d+) \(pid"), "SELECT DISTINCT rank FROM stack_threads WHERE role = 'rank'"),
)


def still_missing(store: Store, missing: Sequence[Missing]) -> list[Missing]:
    """The gaps that no other source fills, such as a record in a file or a stack from the user."""
    if not missing:
        return []
    held = [(pattern, {row["rank"] for row in store.query(query)}) for pattern, query in _HELD]
    return [
        one
        for one in missing
        if not any((found := pattern.search(one.what)) and int(found[1]) in ranks for pattern, ranks in held)
    ]
