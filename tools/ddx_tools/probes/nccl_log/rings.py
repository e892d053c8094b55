"""Findings about how communicators' rings cross hosts, and the algorithm and protocol of operations.

A ring over several hosts must enter and leave each host once: over 4 hosts it crosses 4 times. A ring that crosses more
often loads the network needlessly; usually the ranks are not numbered host by host.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.analysis.nccl.operation_names import operation_name
from ddx_tools.analysis.nccl.process_rows import Communicator, NcclLogs, Row, evidence
from ddx_tools.analysis.nccl.rings import Ring, rings_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity

_MOST_FINDINGS = 20
_MOST_NAMED = 4


def ring_findings(case: NcclLogs, store: Store) -> list[Finding]:
    """Return a finding for each multi-host communicator with known rings."""
    rings = rings_of(store)
    by_algorithm = choices(store)
    found = []
    for name, of_one in rings.items():
        communicator = case.communicators.get(name)
        if communicator and (finding := _finding(case, communicator, of_one, by_algorithm)):
            found.append(finding)
    return found[:_MOST_FINDINGS]


def choices(store: Store) -> list[Row]:
    """Return the algorithm and protocol per operation, over all processes, the largest operations first."""
    return store.query(
        "SELECT operation, algorithm, protocol, max(channels) AS channels, min(least_bytes) AS least_bytes, "
        "max(most_bytes) AS most_bytes, arg_min(quote, source_line) AS quote, min(source) AS source, "
        "min(source_line) AS source_line FROM nccl_choices GROUP BY operation, algorithm, protocol "
        "ORDER BY most_bytes DESC, operation, algorithm, protocol"
    )


def crossing_of(communicator: Communicator, rings: Sequence[Ring]) -> tuple[list[tuple[Ring, int]], int] | None:
    """Return each ring with its number of host crossings, and the minimum; None within one host or for unknown
    hosts."""
    hosts = {rank: str(row["host"]) for rank, row in communicator.members.items()}
    counted = [(ring, len(pairs)) for ring in rings if (pairs := ring.crossings(hosts)) is not None]
    least = len({hosts[rank] for ring, _ in counted for rank in ring.ranks})
    return (counted, least) if counted and least > 1 else None


def _finding(
    case: NcclLogs, communicator: Communicator, rings: Sequence[Ring], by_algorithm: Sequence[Row]
) -> Finding | None:
    told = crossing_of(communicator, rings)
    if told is None:
        return None
    counted, least = told
    wide = [(ring, count) for ring, count in counted if count > least]
    rows = list(communicator.members.values())
    pxn, gdr = _all_alike(rows, "pxn"), _all_alike(rows, "gdr")
    many = f"{len(counted)} ring{'s' if len(counted) > 1 else ''} over {least} hosts"
    if wide:
        worst, count = max(wide, key=lambda each: each[1])
        hosts = {rank: str(row["host"]) for rank, row in communicator.members.items()}
        pairs = ", ".join(f"{a}-{b}" for a, b in (worst.crossings(hosts) or ())[:_MOST_NAMED])
        verb = "cross" if len(wide) > 1 else "crosses"
        said = (
            f"{many}: {len(wide)} {verb} hosts more often than the necessary {least} times; ring {worst.channel} "
            f"crosses {count} times, for example between ranks {pairs}."
        )
    else:
        said = f"{many}, each of which crosses hosts {least} times, the minimum."
    using = [f"PXN {'on' if pxn else 'off'}"] if pxn is not None else []
    using += [f"GPUDirect {'on' if gdr else 'off'}"] if gdr is not None else []
    network = f" {', '.join(using)}." if using else ""
    shown: list[Evidence] = [evidence(ring.row) for ring, _ in (wide or counted)[:_MOST_NAMED]]
    return case.finding(
        "transport.rings",
        Severity.NOTICE if wide else Severity.INFO,
        rows,
        f"{communicator.label}: {said}{network}{_by_words(by_algorithm)}",
        shown,
        rings=len(counted),
        hosts=least,
        least=least,
        most=max(count for _, count in counted),
        sane=not wide,
        pxn=pxn,
        gdr=gdr,
        algorithms=sorted({f"{row['algorithm']}/{row['protocol']}" for row in by_algorithm})[:16] or None,
    )


def _by_words(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    first = rows[0]
    on = f" on {first['channels']} channels" if first["channels"] else ""
    size = (
        f"{first['most_bytes'] / (1 << 20):.3g} MiB"
        if first["most_bytes"] >= 1 << 20
        else f"{first['most_bytes']} bytes"
    )
    return (
        f" The largest operation, {operation_name(first['operation'])} of {size}, used "
        f"{first['algorithm']}/{first['protocol']}{on}."
    )


def _all_alike(rows: Sequence[Row], column: str) -> bool | None:
    said = {row[column] for row in rows if row[column] is not None}
    return bool(said.pop()) if len(said) == 1 else None
