"""Findings about what `ncclras` says. It counts launches: what all ranks launched it calls fine, also in a hang."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.nccl.operation_names import operation_name
from ddx_tools.analysis.nccl.process_rows import Row, evidence
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity, rank_list

_MOST_EVIDENCE = 8
_MOST_FINDINGS = 20
_BASIS = "nccl_ras"
_BLIND = "RAS counts launches and sees a busy job as mismatched, too: ask again, and compare."
_MEANINGS = {
    "dead": (
        "nccl_ras_dead",
        "RAS could not reach the process for 60 s: it ended, is stopped, or its host is cut off.",
    ),
    "missing": ("nccl_ras_missing", "RAS has no data of these ranks: their process does not answer."),
    "async_error": ("nccl_ras_error", "RAS says that NCCL returned an error to these ranks."),
}


def ras_findings(store: Store) -> list[Finding]:
    """Ranks behind by their launches, processes that do not answer, errors."""
    rows = store.query("SELECT * FROM nccl_ras ORDER BY source, source_line")
    gpus = {row["source"]: row["nranks"] for row in rows if row["what"] == "summary" and row["status"] == "OK"}
    counted: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    others: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["what"] == "operations" and row["value"] is not None:
            counted[row["source"], row["communicator"], row["operation"]].append(row)
        elif row["what"] in _MEANINGS and (row["ranks"] or row["pid"] is not None):
            others[row["source"], row["communicator"], row["what"], row["value"]].append(row)
    behind = [found for some in counted.values() if (found := _behind(some, gpus[some[0]["source"]]))]
    said = [_said(some, gpus[some[0]["source"]]) for some in others.values()]
    return behind[:_MOST_FINDINGS] + said[:_MOST_FINDINGS]


def _behind(rows: list[Row], gpus: int | None) -> Finding | None:
    """Ranks that launched less than the most; None if all launched as many."""
    most = max(int(row["value"]) for row in rows)
    low = [row for row in rows if int(row["value"]) < most]
    if not low:
        return None
    late, ahead = sum(row["many"] for row in low), sum(row["many"] for row in rows) - sum(row["many"] for row in low)
    listed = sorted({rank for row in low for rank in row["ranks"] or ()})
    complete = len(listed) == late
    first = rows[0]
    group = f"communicator {first['communicator']} of {first['nranks']} ranks"
    what = operation_name(first["operation"]) if first["operation"] else "collectives"
    who = rank_list(listed).capitalize() if complete else f"{late} ranks (which RAS does not list)"
    found = raising.missing(
        Where(_BASIS, group, operation=what if first["operation"] else None),
        listed if complete else [],
        [],
        FindingPlace([evidence(row) for row in rows[:_MOST_EVIDENCE]]),
        severity=Severity.WARNING,
        simultaneous="unknown",
        last_seq={rank: int(row["value"]) for row in low for rank in row["ranks"] or ()},
        balance=ahead - late,
        says=f"{who} launched fewer {what} than the other {ahead} in {group}: "
        f"{', '.join(sorted({row['value'] for row in low}, key=int)[:6])} against {most}. {_BLIND}",
        enqueue_only=True,
    )
    if first["nranks"] != gpus:
        found.ranks = []  # they count within the communicator
    return found


def _said(rows: list[Row], gpus: int | None) -> Finding:
    first = rows[0]
    signature, meaning = _MEANINGS[first["what"]]
    listed = sorted({rank for row in rows for rank in row["ranks"] or ()})
    processes = [f"process {row['pid']} on {row['host']}" for row in rows if row["pid"] is not None]
    who = rank_list(listed).capitalize() if listed else ", ".join(processes[:6])
    return Finding(
        code="log.signature",
        severity=Severity.WARNING,
        ranks=listed if first["nranks"] == gpus and first["communicator"] else [],
        hosts=sorted({row["host"] for row in rows if row["host"]}),
        group=f"communicator {first['communicator']}" if first["communicator"] else None,
        summary=f"{who}: {meaning}" + (f" ({first['value']})" if first["value"] else ""),
        evidence=[evidence(row) for row in rows[:_MOST_EVIDENCE]],
        attributes={
            "signature": signature,
            "role": "secondary",
            "meaning": meaning,
            "pids": [row["pid"] for row in rows if row["pid"] is not None][:64],
            "count": len(rows),
            "basis": _BASIS,
        },
    )
