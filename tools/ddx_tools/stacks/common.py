"""What the analyses of stacks share: making a finding out of views, grouping views, finding the odd ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ddx_tools.analysis.collectives.raising import Shown
from ddx_tools.model import Evidence, Finding, Location, Severity
from ddx_tools.stacks.view import RankView

_BASIS = {"basis": "stacks"}


def make_finding(code: str, severity: Severity, views: Sequence[RankView], summary: str, **attributes: Any) -> Finding:
    """A finding about ranks, with their dumps as evidence and their innermost user lines as places."""
    pointed = shown(views)
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted({view.rank for view in views}),
        hosts=sorted(pointed.hosts),
        summary=summary,
        evidence=pointed.evidence,
        locations=pointed.locations,
        attributes={**_BASIS, **attributes},
    )


def shown(views: Sequence[RankView]) -> Shown:
    """Dumps and places of ranks.

    A dump that somebody brought is of no known host: where it was read says nothing of where it was taken.
    """
    hosts = {view.host for view in views if not view.brought}
    return Shown([view.evidence() for view in views[:4]], places_of(view.place for view in views), hosts)


def places_of(places: Iterable[Location | None]) -> list[Location]:
    """Places without repetition, in order."""
    unique = {(p.file, p.line, p.function): p for p in places if p is not None}
    return list(unique.values())


def at(view: RankView) -> str:
    """ " at train.py:41 step", or nothing."""
    return f" at {view.place.short()}" if view.place else ""


def minority_of(parties: list[list[RankView]]) -> tuple[list[RankView], list[RankView], bool]:
    """(the ranks of all parties but the largest, the largest party, tie): the odd ones only without a tie."""
    ordered = sorted(parties, key=len, reverse=True)
    rest = [view for members in ordered[1:] for view in members]
    tie = len(rest) >= len(ordered[0])
    return ([] if tie else rest), ordered[0], tie


def place_of_row(row: dict[str, Any]) -> Location:
    """The innermost user line of a row of `stack_threads`."""
    stack = json.loads(row["user_stack"])
    file, line, function = stack[-1] if stack else ("unknown", None, None)
    return Location(file=file, line=line, function=function, source=row["user_source"])


def evidence_of_row(row: dict[str, Any]) -> Evidence:
    """Where the innermost user line of a row of `stack_threads` is shown; of a file with several ranks its line."""
    if row["source_line"] is not None:
        return Evidence(source=row["source"], line=row["source_line"], quote=row["source_text"] or "")
    place = place_of_row(row)
    return Evidence(source=row["source"], quote=f"{place.file}:{place.line} {place.function}")


def grouped(views: Iterable[RankView], key: Callable[[RankView], Any]) -> list[list[RankView]]:
    """Views with the same key, largest group first; groups of one size in rank order."""
    groups: dict[Any, list[RankView]] = defaultdict(list)
    for view in views:
        groups[key(view)].append(view)
    return sorted(groups.values(), key=lambda members: (-len(members), members[0].rank))
