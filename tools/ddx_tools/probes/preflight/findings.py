"""The findings of a preflight, and whether it passed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.bandwidth.measured import size_text
from ddx_tools.analysis.collectives.wait_solver import fewest
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.preflight.speed import speed_findings
from ddx_tools.probes.preflight.stragglers import straggler_findings

_BAD = (Severity.WARNING, Severity.FAILURE)

_RUNS = """
SELECT p.run, count(*) AS ranks, any_value(p.world_size) AS world_size, count(DISTINCT p.host) AS hosts,
       any_value(p.backend) AS backend, bool_and(p.finished) AS finished, list(p.rank ORDER BY p.rank) AS seen,
       any_value(p.source) AS source, any_value(r.state) AS state,
       (SELECT count(DISTINCT step) FROM preflight_steps s WHERE s.run = p.run AND s.wrong IS NOT NULL) AS checked,
       EXISTS (FROM preflight_rounds c WHERE c.run = p.run) AS compared
FROM preflight_ranks p LEFT JOIN preflight_runs r USING (run) GROUP BY p.run ORDER BY p.run"""


def preflight_findings(store: Store) -> list[Finding]:
    """Return what is wrong first, then bandwidth; `preflight.passed` if nothing is wrong."""
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
        summary=f"passed: {run['ranks']} ranks on {hosts} ({run['backend']}), {run['checked']} operations with correct "
        f"results{', no rank slower than its peers' if run['compared'] else ''}",
        evidence=[Evidence(source=run["source"])],
        attributes={"checked": run["checked"], "world_size": run["world_size"], "backend": run["backend"]},
    )


def _not_here(run: dict[str, Any]) -> Iterator[Finding]:
    """Ranks whose results are missing here: ranks write their results on their own hosts."""
    missing = sorted(set(range(run["world_size"] or 0)) - set(run["seen"]))
    if not missing or run["state"] == "expired":
        return
    yield Finding(
        code="records.rank_missing",
        severity=Severity.NOTICE,
        ranks=missing,
        summary=f"results of {rank_list(missing)} are not here: name the directories of all hosts, or let all hosts "
        "use one directory on a shared file system (--directory)",
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
            summary=f"{rank_list(row['ranks'])} use the same GPU, {row['device_id']}",
            evidence=[Evidence(source=row["source"])],
            attributes={"devices": [row["device_id"]]},
        )
        for row in rows
    ]


# --- wrong results, and which rank caused them

_SHOWN = 5
_ONE_RECEIVER = ("reduce", "gather")
"""Only the root can see a wrong result here, so a result that is wrong at one rank only does not blame that rank."""


@dataclass(frozen=True)
class Wrong:
    """One operation whose result was wrong at one or more members."""

    operation: str
    members: frozenset[int]
    """The ranks that took part."""
    seen_by: frozenset[int]
    origins: frozenset[int]
    """The ranks that the wrong elements came from, as far as all ranks that saw them agree."""

    def suspects(self) -> frozenset[int]:
        """Return the ranks that may have caused the wrong result.

        If only one rank got a wrong result, it is that one. If the data of one rank were wrong at all others, it is
        their source; else all with wrong results. For reduce and gather, both the receiver and the sources of wrong
        data are suspects.
        """
        if self.operation in _ONE_RECEIVER:
            return self.seen_by | self.origins
        if len(self.seen_by) == 1:
            return self.seen_by
        if len(self.origins) == 1 and self.seen_by >= self.members - self.origins:
            return self.origins
        return self.seen_by


def wrong_result_findings(store: Store) -> list[Finding]:
    """Return one `preflight.wrong_result` per run, about the fewest ranks that explain the wrong results."""
    rows = store.query(
        "SELECT s.*, p.host, p.world_size FROM preflight_steps s LEFT JOIN preflight_ranks p USING (run, rank) "
        "WHERE s.wrong > 0 ORDER BY s.run, s.step, s.rank"
    )
    return [_finding(of_run) for of_run in gathered((row["run"], row) for row in rows).values()]


def _finding(rows: Sequence[dict[str, Any]]) -> Finding:
    suspects, _ = fewest(wrong.suspects() for wrong in _operations(rows))
    operations = Counter(row["operation"] for row in rows)
    seen_by = {row["rank"] for row in rows if row["rank"] is not None}
    whose = rank_list(suspects) if suspects else "some rank"
    if not seen_by:
        words = "nccl-tests counted wrong elements but does not say on which rank"
    elif suspects == seen_by and len(suspects) == (rows[0]["world_size"] or 0):
        words = "results are wrong on all ranks, so the source of the wrong data is unknown"
    elif suspects == seen_by:
        words = f"{whose}: results are wrong there" + ("" if len(suspects) > 1 else ", and correct on all others")
    else:
        words = f"{whose}: data from there are wrong on {rank_list(seen_by)}"
    first = rows[0]
    return Finding(
        code="preflight.wrong_result",
        severity=Severity.FAILURE,
        ranks=sorted(suspects),
        hosts=sorted({row["host"] for row in rows if row["rank"] in suspects and row["host"]}),
        summary=f"{words} ({', '.join(operations)}; {_example(first)})",
        evidence=[
            Evidence(source=row["source"], line=row["source_line"], quote=_example(row)) for row in rows[:_SHOWN]
        ],
        attributes={
            "operations": sorted(operations),
            "seen_by": sorted(seen_by),
            "steps": len({row["step"] for row in rows}),
            "certain": len(suspects) == 1,
        },
    )


def _example(row: dict[str, Any]) -> str:
    of = f" of {row['elements']}" if row["elements"] else ""
    values = f", element {row['wrong_index']} is {row['got']} instead of {row['expected']}" if row["got"] else ""
    size = size_text(row["bytes"] or 0)
    return f"{row['operation']} of {size} {row['dtype'] or ''}: {row['wrong']}{of} elements wrong{values}"


def _operations(rows: Sequence[dict[str, Any]]) -> list[Wrong]:
    """Combine the rows of one step and group into one operation: every rank numbers its steps the same way."""
    together: dict[tuple[int, str, tuple[int, ...]], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["rank"] is not None:
            pair = (row["rank"], row["peer"]) if row["operation"] == "pair" and row["peer"] is not None else ()
            together[row["step"], row["operation"], tuple(row["members"] or sorted(pair))].append(row)
    found = []
    for (_, operation, members), of_step in together.items():
        everybody = frozenset(members or range(max(row["world_size"] or 0 for row in of_step)))
        seen_by = frozenset(row["rank"] for row in of_step)
        origins = frozenset.intersection(*(frozenset(row["origins"] or ()) for row in of_step))
        found.append(Wrong(operation, everybody, seen_by, origins))
    return found


# --- runs that did not complete: ranks that never entered the step the others are in, and ranks that raised

# The last step that each rank started. All ranks number their steps the same way.
_LAST = """
SELECT p.run, p.rank, p.host, p.world_size, p.local_world_size, p.finished, p.source, s.step, s.operation,
       s.state, s.group_name, s.bytes, s.dtype, s.source_line
FROM preflight_ranks p LEFT JOIN preflight_steps s ON s.run = p.run AND s.rank = p.rank
WHERE p.rank IS NOT NULL QUALIFY row_number() OVER (PARTITION BY p.run, p.rank ORDER BY s.step DESC NULLS LAST) = 1
ORDER BY p.run, p.rank"""


def arrival_findings(store: Store) -> list[Finding]:
    """Return one `preflight.never_arrived`, `preflight.step_expired` or `preflight.step_failed` per incomplete run."""
    last = store.query(_LAST)
    raised = store.query("SELECT * FROM preflight_steps WHERE state = 'failed' ORDER BY run, step, rank")
    found = [_failed_test(row) for row in raised if row["rank"] is None]
    for run in store.query("SELECT * FROM preflight_runs ORDER BY run"):
        of_run = [row for row in last if row["run"] == run["run"]]
        if run["state"] == "expired":
            found.append(_standstill(run, of_run))
        elif run["state"] == "failed" or not of_run or not all(row["finished"] for row in of_run):
            found.append(_broken_off(run, of_run, [row for row in raised if row["run"] == run["run"]]))
    return found


def _standstill(run: dict[str, Any], last: Sequence[dict[str, Any]]) -> Finding:
    furthest = max((row["step"] for row in last if row["step"] is not None), default=None)
    came = [row for row in last if row["step"] == furthest and furthest is not None]
    absent = {row["rank"] for row in last} - {row["rank"] for row in came} | _without_a_line(last)
    culprits = set(run["culprits"] or ()) if run["verdict"] == "diagnosed" else set()
    never_arrived = bool(absent) and culprits <= absent
    named = culprits or (absent if never_arrived else set())
    quiet = f"for {run['quiet_s']:.0f} s" if run["quiet_s"] is not None else "for too long"
    if never_arrived:
        words = f"{rank_list(named)} never entered {_step(came)}"
        if came:
            words += f", where {rank_list({row['rank'] for row in came})} wait{'s' if len(came) == 1 else ''} {quiet}"
    elif came and all(row["finished"] for row in came):
        words = f"all steps are done, but the processes did not exit {quiet}"
    else:
        words = f"{_step(came)} does not end {quiet}" + ("" if absent else ", although all ranks started it")
    if culprits and run["cause_title"]:
        words += f"; {rank_list(culprits)}: {run['cause_title']}"
    evidence = [Evidence(source=run["source"], quote=f"nothing moved {quiet}")]
    evidence += [Evidence(source=row["source"], line=row["source_line"]) for row in last if row["rank"] in named][:3]
    return Finding(
        code="preflight.never_arrived" if never_arrived else "preflight.step_expired",
        severity=Severity.FAILURE,
        ranks=sorted(named),
        hosts=sorted({row["host"] for row in last if row["rank"] in named and row["host"]}),
        summary=words + (f"    ddx why {run['bundle']}" if run["bundle"] else ""),
        evidence=evidence,
        attributes={
            "operation": came[0]["operation"] if came else "start",
            "step": furthest,
            "not_arrived": sorted(absent),
            "quiet_s": run["quiet_s"],
            "cause": run["cause"],
            "verdict": run["verdict"],
            "bundle": run["bundle"],
        },
    )


def _without_a_line(last: Sequence[dict[str, Any]]) -> set[int]:
    """Ranks that wrote nothing: if all ranks run on this host, these did not even finish importing torch."""
    alone = [row for row in last if row["world_size"] and row["world_size"] == row["local_world_size"]]
    return set(range(alone[0]["world_size"])) - {row["rank"] for row in last} if alone else set()


def _step(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "its first step"
    row = rows[0]
    of = f" of {row['bytes']} bytes {row['dtype']}" if row["bytes"] else ""
    group = f" in {row['group_name']}" if row["group_name"] not in (None, "world") else ""
    return f"{row['operation']}{of}{group}"


def _broken_off(run: dict[str, Any], last: Sequence[dict[str, Any]], raised: Sequence[dict[str, Any]]) -> Finding:
    """The launcher ended before all ranks were done. When a rank ends, its peers lose their connections; the diagnosis
    says which was first.
    """
    diagnosed = run["verdict"] == "diagnosed" and bool(run["culprits"])
    named = set(run["culprits"]) if diagnosed else {row["rank"] for row in raised}
    told = [row for row in raised if row["rank"] in named]
    furthest = max((row["step"] for row in last if row["step"] is not None), default=None)
    begun = [row for row in last if row["step"] == furthest and furthest is not None]
    at = f"in {_step(begun)}" if begun else "before its first step"
    why = [f"{rank_list(named)}: {run['cause_title']}"] if diagnosed and run["cause_title"] else []
    why += [f"{rank_list([row['rank']])} raised {(row['error'] or '')[:300]}" for row in told[:1]]
    again = f"    ddx why {run['bundle']}" if run["bundle"] else ""
    return Finding(
        code="preflight.step_failed",
        severity=Severity.FAILURE,
        ranks=sorted(named),
        hosts=sorted({row["host"] for row in last if row["rank"] in named and row["host"]}),
        summary="; ".join([*why, f"the launcher ended (exit code {run['exit_code']}) {at}"]) + again,
        evidence=[*map(_raised, told[:3]), Evidence(source=run["source"], quote=f"exit code {run['exit_code']}")],
        attributes={
            "operation": told[0]["operation"] if told else None,
            "error": told[0]["error"] if told else None,
            "cause": run["cause"],
            "verdict": run["verdict"],
        },
    )


def _failed_test(row: dict[str, Any]) -> Finding:
    return Finding(
        code="preflight.step_failed",
        severity=Severity.FAILURE,
        summary=f"nccl-tests failed in {_step([row])}: {(row['error'] or '')[:300]}",
        evidence=[_raised(row)],
        attributes={"operation": row["operation"], "error": row["error"], "cause": None, "verdict": None},
    )


def _raised(row: dict[str, Any]) -> Evidence:
    return Evidence(source=row["source"], line=row["source_line"], quote=(row["error"] or "")[:300])
