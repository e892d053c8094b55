"""Runs that did not come to their end: who never came to the step that the others are in, who raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.store import Store

# Of each rank, the last step that it began. All ranks count their steps alike.
_LAST = """
SELECT p.run, p.rank, p.host, p.world_size, p.local_world_size, p.finished, p.source, s.step, s.operation,
       s.state, s.group_name, s.bytes, s.dtype, s.source_line
FROM preflight_ranks p LEFT JOIN preflight_steps s ON s.run = p.run AND s.rank = p.rank
WHERE p.rank IS NOT NULL QUALIFY row_number() OVER (PARTITION BY p.run, p.rank ORDER BY s.step DESC NULLS LAST) = 1
ORDER BY p.run, p.rank"""


def arrival_findings(store: Store) -> list[Finding]:
    """`preflight.never_arrived`, `preflight.step_expired` and `preflight.step_failed`: one for each run."""
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
        words = f"{rank_list(named)} never came to {_step(came)}"
        if came:
            words += f", where {rank_list({row['rank'] for row in came})} wait{'s' if len(came) == 1 else ''} {quiet}"
    elif came and all(row["finished"] for row in came):
        words = f"all steps are done, and the processes do not end {quiet}"
    else:
        words = f"{_step(came)} does not end {quiet}" + ("" if absent else ", though all ranks began it")
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
    """Where all ranks run on this host, those that wrote nothing did not even get torch imported."""
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
    """The launcher ended, and not all ranks are done. When one ends, its peers lose their connections; who was first,
    the diagnosis tells.
    """
    diagnosed = run["verdict"] == "diagnosed" and bool(run["culprits"])
    named = set(run["culprits"]) if diagnosed else {row["rank"] for row in raised}
    told = [row for row in raised if row["rank"] in named]
    furthest = max((row["step"] for row in last if row["step"] is not None), default=None)
    at = (
        f"in {_step([row for row in last if row['step'] == furthest])}"
        if furthest is not None
        else "before its first step"
    )
    why = [f"{rank_list(named)}: {run['cause_title']}"] if diagnosed and run["cause_title"] else []
    why += [f"{rank_list([row['rank']])} raised {(row['error'] or '')[:300]}" for row in told[:1]]
    again = f"    ddx why {run['bundle']}" if run["bundle"] else ""
    return Finding(
        code="preflight.step_failed",
        severity=Severity.FAILURE,
        ranks=sorted(named),
        hosts=sorted({row["host"] for row in last if row["rank"] in named and row["host"]}),
        summary="; ".join([*why, f"the launcher ended (exit code {run['exit_code']}) {at}"]) + again,
        evidence=[
            *(
                Evidence(source=row["source"], line=row["source_line"], quote=(row["error"] or "")[:300])
                for row in told[:3]
            ),
            Evidence(source=run["source"], quote=f"exit code {run['exit_code']}"),
        ],
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
        evidence=[Evidence(source=row["source"], line=row["source_line"], quote=(row["error"] or "")[:300])],
        attributes={"operation": row["operation"], "error": row["error"], "cause": None, "verdict": None},
    )
