"""Findings about variables that NCCL took from the environment, where ranks or hosts differ in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddx_tools.model import Finding, Severity
from ddx_tools.nccl.view import Case, Process, Row, evidence
from ddx_tools.store import Store

_MOST_EVIDENCE = 6
_MOST_VALUES = 32
# What is meant to be another on each rank or host.
_OWN = frozenset({"NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_COMM_ID"})


def setting_findings(case: Case, store: Store) -> list[Finding]:
    """One finding for each variable that is not the same everywhere."""
    by_variable: dict[str, dict[Process, Row]] = defaultdict(dict)
    for row in store.query("SELECT * FROM nccl_settings ORDER BY variable, host, pid"):
        by_variable[row["variable"]][row["host"], row["pid"]] = row
    members = {(row["host"], row["pid"]) for one in case.communicators.values() for row in one.members.values()}
    return [
        finding
        for variable, rows in by_variable.items()
        if variable not in _OWN
        for finding in [*_values_differ(case, variable, rows), *_set_on_some_hosts(case, variable, rows, members)][:1]
    ]


def _values_differ(case: Case, variable: str, rows: dict[Process, Row]) -> Iterator[Finding]:
    by_value: dict[str, list[Row]] = defaultdict(list)
    for row in rows.values():
        by_value[row["value"]].append(row)
    if len(by_value) < 2:
        return
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    majority = 2 * len(ordered[0][1]) > len(rows)
    odd = [row for _, some in (ordered[1:] if majority else ordered) for row in some]
    yield Finding(
        code="config.differs",
        severity=Severity.WARNING,
        ranks=case.ranks_of(odd),
        hosts=sorted({row["host"] for row in odd}),
        summary=f"{variable} is not the same everywhere: "
        + "; ".join(f"{value or '(empty)'} on {_hosts(some)}" for value, some in ordered[:6])
        + ".",
        evidence=[evidence(some[0]) for value, some in ordered[:_MOST_EVIDENCE]],
        attributes={
            "variable": variable,
            "values": {value: _places(case, some) for value, some in ordered[:_MOST_VALUES]},
            "minority": majority,
            "tie": not majority,
            "basis": "nccl_log",
        },
    )


def _set_on_some_hosts(case: Case, variable: str, rows: dict[Process, Row], members: set[Process]) -> Iterator[Finding]:
    """Set for all processes of some hosts and for none of the others.

    NCCL reads many variables only where it needs them, so what one process alone prints says nothing.
    """
    by_host: dict[str, list[Process]] = defaultdict(list)
    for process in members:
        by_host[process[0]].append(process)
    having = {host for host, own in by_host.items() if all(process in rows for process in own)}
    lacking = {host for host, own in by_host.items() if not any(process in rows for process in own)}
    if not having or not lacking or having | lacking != by_host.keys():
        return
    odd = lacking if len(lacking) < len(having) else having if len(having) < len(lacking) else lacking | having
    value = next(row["value"] for row in rows.values() if row["host"] in having)
    yield Finding(
        code="config.differs",
        severity=Severity.NOTICE,
        ranks=case.ranks_of(case.processes[process] for host in odd for process in by_host[host]),
        hosts=sorted(odd),
        summary=f"{variable} ({value}) is set on {', '.join(sorted(having)[:8])}; the log of "
        f"{', '.join(sorted(lacking)[:8])} does not mention it.",
        evidence=[evidence(row) for row in list(rows.values())[:_MOST_EVIDENCE]],
        attributes={
            "variable": variable,
            "values": {value: sorted(having)[:_MOST_VALUES], "(not mentioned)": sorted(lacking)[:_MOST_VALUES]},
            "minority": len(lacking) != len(having),
            "tie": len(lacking) == len(having),
            "basis": "nccl_log",
        },
    )


def _hosts(rows: list[Row]) -> str:
    return ", ".join(sorted({row["host"] for row in rows})[:6])


def _places(case: Case, rows: list[Row]) -> list[str]:
    """Ranks where they are known, else hosts."""
    ranks = case.ranks_of(rows)
    return [str(rank) for rank in ranks] if len(ranks) == len(rows) else sorted({row["host"] for row in rows})
