"""Communicators as a table: members, how far set-up got, enqueued operations, transports."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ddx_tools.analysis.nccl.process_rows import Communicator, NcclLogs, read_case
from ddx_tools.analysis.nccl.rings import Ring, rings_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.nccl_log.operation_findings import Enqueued, read_enqueued
from ddx_tools.probes.nccl_log.rings import choices, crossing_of


def communicator_rows(store: Store) -> list[dict[str, Any]]:
    """Return a row for each communicator; those with unfinished set-up or diverging ranks come first."""
    case = read_case(store)
    rings = rings_of(store)
    by_algorithm = ", ".join(f"{row['algorithm']}/{row['protocol']}" for row in choices(store)[:3]) or None
    enqueued = {one.communicator.id: one for one in read_enqueued(case, store)}
    vias = store.query(
        "SELECT communicator, via, sum(channels) AS channels FROM nccl_edges "
        "WHERE direction IS DISTINCT FROM 'receive' GROUP BY ALL ORDER BY channels DESC"
    )
    by_communicator = gathered((row["communicator"], f"{row['via']} x {row['channels']}") for row in vias)
    rows = [
        _row(case, one, enqueued.get(one.id), by_communicator.get(one.id, []))
        | {"rings": _crossings(one, rings.get(one.id, [])), "by": by_algorithm}
        for one in case.communicators.values()
    ]
    rows.sort(key=lambda row: ("-" not in (row["last_op"] or ""), row["set_up"] == row["nranks"], -row["nranks"]))
    return rows


def _crossings(one: Communicator, rings: list[Ring]) -> str | None:
    """The ring count as text: `2, crossing hosts 4 times (2 would do)`."""
    if (told := crossing_of(one, rings)) is None:
        return str(len(rings)) if rings else None
    counted, least = told
    most = max(count for _, count in counted)
    return f"{len(counted)}, crossing hosts {most} times" + (f" ({least} would do)" if most > least else "")


def _row(case: NcclLogs, one: Communicator, enqueued: Enqueued | None, vias: list[str]) -> dict[str, Any]:
    members = one.members.values()
    streams = list(enqueued.streams.values()) if enqueued else []
    lasts = [row["last_op"] for row in streams]
    names: Counter[str] = Counter()
    for row in streams[:1]:
        names.update(json.loads(row["names"]))
    return {
        "communicator": one.id,
        "nranks": one.nranks,
        "ranks": case.globally(one, one.members) or None,
        "hosts": len({row["host"] for row in members}),
        "logged": len(one.members),
        "set_up": sum(1 for row in members if row["completed"]),
        "set_up_s": max((row["total_s"] for row in members if row["total_s"] is not None), default=None),
        "pxn": next((row["pxn"] for row in members if row["pxn"] is not None), None),
        "gdr": next((row["gdr"] for row in members if row["gdr"] is not None), None),
        "channels": max((row["coll_channels"] for row in members if row["coll_channels"] is not None), default=None),
        "over": ", ".join(vias[:4]) or None,
        "last_op": None if not lasts else str(lasts[0]) if len(set(lasts)) == 1 else f"{min(lasts)}-{max(lasts)}",
        "operations": ", ".join(f"{count} {name}" for name, count in names.most_common(3)) or None,
        "ended": ", ".join(sorted({row["ended"] for row in members if row["ended"]})) or None,
    }
