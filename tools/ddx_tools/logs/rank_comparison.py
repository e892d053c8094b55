"""Values that ranks printed for comparison, side by side: which are equal, which differ, and who is the odd one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ddx_tools.logs.event import Event
from ddx_tools.logs.reported import by_ranks
from ddx_tools.logs.step_events import step_finding
from ddx_tools.model import Finding, Severity, rank_list

_ALIKE = 1e-4
"""Relative difference that sums in another order may have."""
_NAMES = {
    "parameters": "checksums of parameters",
    "buffers": "checksums of buffers",
    "grad_norm": "gradient norms",
    "samples": "lists of samples",
    "batch": "checksums of batches",
}
_SHOULD_DIFFER = ("samples", "batch")


def compared_by_rank(events: list[Event]) -> list[Finding]:
    """One finding for each kind of value that at least two ranks printed at one step; the earliest odd step of it."""
    labelled = _labels_are_ranks(events)
    at: dict[tuple[str, int, Any], dict[int, Event]] = defaultdict(dict)
    for event in events:
        if event.kind == "value" and (rank := _rank_of(event, labelled)) is not None:
            known = at[event.details["what"], event.attempt, event.details.get("step")]
            known.setdefault(rank, event)
    found: dict[str, Finding] = {}
    for (what, _, step), of_rank in sorted(at.items(), key=lambda item: (item[0][1], item[0][2] or 0)):
        if len(of_rank) < 2:
            continue
        finding = _compared(what, step, of_rank)
        known_odd = what in found and found[what].severity is not Severity.INFO
        if not known_odd and (what not in found or finding.severity is not Severity.INFO):
            found[what] = finding
    return list(found.values())


def _labels_are_ranks(events: list[Event]) -> bool:
    """Whether the numbers before lines that name no rank count from 0, and each stands before several lines."""
    labels = [event.details.get("label") for event in events if event.kind == "value" and not event.ranks]
    known = set(labels)
    return len(known) > 1 and known == set(range(len(known))) and len(labels) >= 2 * len(known)


def _rank_of(event: Event, labelled: bool) -> int | None:
    if len(event.ranks) == 1:
        return event.ranks[0]
    label: int | None = event.details.get("label")
    return label if labelled and not event.ranks else None


def _compared(what: str, step: int | None, of_rank: dict[int, Event]) -> Finding:
    groups: list[list[int]] = []
    for rank, event in sorted(of_rank.items()):
        same = next((g for g in groups if _alike(of_rank[g[0]].details["value"], event.details["value"])), None)
        if same is None:
            groups.append([rank])
        else:
            same.append(rank)
    groups.sort(key=len, reverse=True)
    equal = len(groups) == 1
    # Two ranks or more that agree show what the value should be; if all differ, nobody is the odd one.
    odd = [rank for group in groups[1:] for rank in group] if len(groups[0]) > len(of_rank) / 2 else []
    where = f" at step {step}" if step is not None else ""
    if equal:
        said = f"The {_NAMES[what]} of {rank_list(list(of_rank))} are equal{where}."
    elif odd:
        said = f"The {_NAMES[what]} differ between ranks{where}: {rank_list(odd)} against {rank_list(groups[0])}."
    else:
        said = f"The {_NAMES[what]} of {rank_list(list(of_rank))} differ{where}."
    is_odd = equal if what in _SHOULD_DIFFER else not equal
    return step_finding(
        "numerics.compared_by_rank",
        Severity.NOTICE if is_odd else Severity.INFO,
        [of_rank[rank] for rank in (*odd, *(r for r in sorted(of_rank) if r not in odd))],
        said,
        {
            "what": what,
            "equal": equal,
            "step": step,
            "values": by_ranks({rank: event.details["value"][:40] for rank, event in of_rank.items()}),
            "ranks_compared": len(of_rank),
            "distinct": len(groups),
            "minority": bool(odd) if not equal else None,
        },
        ranks=odd if odd else sorted(of_rank),
    )


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        first, second = float(one), float(other)
    except ValueError:
        return False
    # Numbers of hexadecimal look like whole ones: those are equal or not.
    is_measured = "." in one + other
    return is_measured and abs(first - second) <= _ALIKE * max(abs(first), abs(second))
