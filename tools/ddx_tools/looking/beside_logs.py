"""A suspect beside its peers as logs tell: how far each came, what its watchdog reported, what it raised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ddx_tools.model import Aspect, Location
from ddx_tools.store import Store

_LAST = """
SELECT rank, kind, code, text, details, file, line, function FROM log_events
WHERE rank IS NOT NULL AND NOT coalesce(superseded, false) AND (
    kind = 'traceback' OR (kind = 'step' AND details->>'step' IS NOT NULL)
    OR (kind = 'watchdog' AND details->>'operation' IS NOT NULL)
)
QUALIFY row_number() OVER (PARTITION BY rank, kind ORDER BY kind = 'traceback', attempt DESC, source_line DESC) = 1
"""
_LONGEST = 160
_NOTHING = "nothing of the kind"


def by_logs(store: Store, suspect: int, peers: Sequence[int], suspects: Collection[int]) -> Iterator[Aspect]:
    """In what the last that logs tell of a rank differs from the last of most peers; without any, of all others."""
    if not store.holds_any(["log_events"]):
        return
    by_kind: dict[str, dict[int, str]] = {}
    for row in store.query(_LAST):
        told = _told(row)
        if told:
            by_kind.setdefault(row["kind"], {})[row["rank"]] = told
    for kind, what in (("step", "last step"), ("watchdog", "watchdog"), ("traceback", "raised")):
        said = by_kind.get(kind, {})
        others = [words for rank, words in said.items() if (rank in peers if peers else rank not in suspects)]
        if others and (kind != "step" or suspect in said):
            yield Aspect(what=what, suspect=said.get(suspect, _NOTHING), peers=Counter(others).most_common(1)[0][0])


def _told(row: dict[str, Any]) -> str:
    details = json.loads(row["details"] or "{}")
    if row["kind"] == "step":
        step, total = details.get("step"), details.get("total")
        of = f" of {total}" if total else ""
        bar = f" ({details['bar']})" if details.get("bar") else ""
        return f"{step}{of}{bar}"[:_LONGEST] if step is not None else ""
    if row["kind"] == "watchdog":
        named = [f"{name} {details[name]}" for name in ("seq", "last_enqueued", "last_completed") if name in details]
        return ", ".join([details["operation"], *named])[:_LONGEST] if details.get("operation") else ""
    place = Location(file=row["file"], line=row["line"], function=row["function"]).short() if row["file"] else ""
    return f"{row['code']}{f' at {place}' if place else ''}"[:_LONGEST]
