"""All that a preflight has to say, and whether it passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.preflight.arrivals import arrival_findings
from ddx_tools.preflight.results import wrong_result_findings
from ddx_tools.preflight.speed import speed_findings
from ddx_tools.preflight.stragglers import straggler_findings
from ddx_tools.store import Store

_BAD = (Severity.WARNING, Severity.FAILURE)

_RUNS = """
SELECT p.run, count(*) AS ranks, any_value(p.world_size) AS world_size, count(DISTINCT p.host) AS hosts,
       any_value(p.backend) AS backend, bool_and(p.finished) AS finished, list(p.rank ORDER BY p.rank) AS seen,
       any_value(p.source) AS source, any_value(r.state) AS state,
       (SELECT count(DISTINCT step) FROM preflight_steps s WHERE s.run = p.run AND s.wrong IS NOT NULL) AS checked,
       EXISTS (FROM preflight_rounds c WHERE c.run = p.run) AS compared
FROM preflight_ranks p LEFT JOIN preflight_runs r USING (run) GROUP BY p.run ORDER BY p.run"""


def preflight_findings(store: Store) -> list[Finding]:
    """What is wrong, first; then bandwidth; `preflight.passed` where nothing is."""
    judged = [
        *arrival_findings(store),
        *wrong_result_findings(store),
        *_shared_devices(store),
        *straggler_findings(store),
        *speed_findings(store),
    ]
    runs = store.query(_RUNS)
    judged += [finding for run in runs for finding in _not_here(run)]
    if any(finding.severity in _BAD for finding in judged):
        return judged
    return [*(_passed(run) for run in runs if _whole(run)), *judged]


def _whole(run: dict[str, Any]) -> bool:
    return bool(run["finished"]) and run["state"] in (None, "ended") and run["checked"] > 0


def _passed(run: dict[str, Any]) -> Finding:
    hosts = "1 host" if run["hosts"] == 1 else f"{run['hosts']} hosts"
    return Finding(
        code="preflight.passed",
        severity=Severity.INFO,
        ranks=run["seen"],
        summary=f"passed: {run['ranks']} ranks on {hosts} ({run['backend']}), {run['checked']} operations with right "
        f"results{', no rank slower than its peers' if run['compared'] else ''}",
        evidence=[Evidence(source=run["source"])],
        attributes={"checked": run["checked"], "world_size": run["world_size"], "backend": run["backend"]},
    )


def _not_here(run: dict[str, Any]) -> Iterator[Finding]:
    """Ranks of other hosts write on those hosts."""
    missing = sorted(set(range(run["world_size"] or 0)) - set(run["seen"]))
    if not missing or run["state"] == "expired":
        return
    yield Finding(
        code="records.rank_missing",
        severity=Severity.NOTICE,
        ranks=missing,
        summary=f"results of {rank_list(missing)} are not here: name the directories of all hosts together, or "
        "give all of them one on a shared file system (--directory)",
        evidence=[Evidence(source=run["source"])],
        attributes={"ranks": missing, "recorded": run["ranks"]},
    )


def _shared_devices(store: Store) -> list[Finding]:
    rows = store.query(
        "SELECT run, host, device_id, list(rank ORDER BY rank) AS ranks, any_value(source) AS source "
        "FROM preflight_ranks WHERE device_id IS NOT NULL GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL"
    )
    return [
        Finding(
            code="device.duplicate",
            severity=Severity.FAILURE,
            ranks=row["ranks"],
            hosts=[row["host"]] if row["host"] else [],
            summary=f"{rank_list(row['ranks'])} use one GPU, {row['device_id']}",
            evidence=[Evidence(source=row["source"])],
            attributes={"devices": [row["device_id"]]},
        )
        for row in rows
    ]
