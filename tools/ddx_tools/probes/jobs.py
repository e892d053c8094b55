"""Probe `jobs`: which distributed jobs run on this host, and which process is which rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.launcher_knowledge import launcher_knowledge
from ddx_tools.formats.launchers import Job, Member, find_jobs
from ddx_tools.hosts.base import Host
from ddx_tools.job_target import select_job
from ddx_tools.model import Evidence, Finding, ProbeStatus, Severity, rank_list
from ddx_tools.probe import Probe, ProbeArgs, Raw, RawItem, Rows
from ddx_tools.store import Store

__all__ = ["PROBE", "Job", "JobsArgs", "Member", "find_jobs", "select_job"]

_COMMAND_CHARS = 300


class JobsArgs(ProbeArgs):
    """The target may be the pid of a launcher, of a rank or of a worker; without one all jobs are shown."""


def _capture(host: Host, args: JobsArgs) -> Raw:
    raw = Raw(host.name)
    reply = host.processes()
    snapshot = _decoded(reply.data)
    jobs = find_jobs(snapshot)
    pids = [text for text in args.target if text.isdigit()]
    chosen = select_job(jobs, pids).id if pids else None
    raw.items.append(RawItem("processes", reply.data, reply.source, {"job": chosen}))
    seen = snapshot["processes"]
    unreadable = sum(1 for row in seen if not row.get("readable") and row.get("state") != "Z")
    raw.searched.append(f"{len(seen)} Python and launcher processes on {host.name}, {unreadable} of them not readable")
    if not jobs:
        raw.status = ProbeStatus.NO_DATA
        if unreadable:
            raw.problems.append(
                f"{unreadable} Python processes on {host.name} belong to somebody else and could not be read. "
                "If the job is among them: run ddx as its owner, or with sudo."
            )
    return raw


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        snapshot = json.loads(data)
    except ValueError as error:
        raise UnreadableInput(f"the process snapshot is not JSON: {error}") from error
    if not isinstance(snapshot, dict):
        raise UnreadableInput("the process snapshot is not a JSON object")
    return snapshot


def _parse(raw: Raw) -> Rows:
    rows: list[dict[str, Any]] = []
    for item in raw.of("processes"):
        snapshot = _decoded(item.data)
        for job in find_jobs(snapshot):
            if item.facts.get("job") in (None, job.id):
                rows += [_row(raw.host, job, member, snapshot, item.source) for member in job.members]
    return {"ranks": rows}


def _row(host: str, job: Job, member: Member, snapshot: Mapping[str, Any], source: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "host": host,
        "job": job.id,
        "role": member.role,
        "rank": member.rank,
        "local_rank": member.local_rank,
        "world_size": job.world_size,
        "launcher": job.launcher,
        "master": job.master,
        "source": source,
    }
    process = member.process
    if process is None:
        return row
    seen = process.row
    wall_s = _difference(snapshot.get("now"), seen.get("create_time"))
    cpu_s = _sum(seen.get("cpu_user_s"), seen.get("cpu_system_s"))
    fds = seen.get("fds") or {}
    return row | {
        "pid": process.pid,
        "ppid": process.ppid,
        "state": process.state,
        "cpu_percent": round(100 * cpu_s / wall_s, 1) if cpu_s is not None and wall_s else None,
        "wall_s": wall_s,
        "rss_bytes": seen.get("rss_bytes"),
        "command": process.command[:_COMMAND_CHARS],
        "cwd": seen.get("cwd"),
        "stdout": fds.get("1"),
        "stderr": fds.get("2"),
        "run_dir": process.env.get("DDX_RUN_DIR"),
        "python": process.exe or None,
        "debug": json.dumps(launcher_knowledge().debug_settings(process.env), sort_keys=True),
    }


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else round(max(0.0, later - earlier), 3)


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _analyse(store: Store) -> list[Finding]:
    rows = store.query("SELECT * FROM ranks ORDER BY host, job, rank NULLS LAST, pid")
    findings: list[Finding] = []
    for key in dict.fromkeys((row["host"], row["job"]) for row in rows):
        members = [row for row in rows if (row["host"], row["job"]) == key]
        findings += [_found(members), *_gone(members), *_unreadable(members), *_held(members)]
    return findings


def _found(members: list[dict[str, Any]]) -> Finding:
    first = members[0]
    roles = Counter(row["role"] for row in members)
    ranks = [row for row in members if row["role"] == "rank"]
    size = first["world_size"]
    if ranks:
        seen = f"{len(ranks)} of {size} ranks run here" if size else f"{len(ranks)} rank processes run here"
        seen += "" if size else "; nothing outside of them says the world size"
    elif roles["unreadable"]:
        seen = "its ranks cannot be read by this user"
    else:
        seen = "no rank has a process (not started yet, or all ended)"
    return Finding(
        code="job.found",
        severity=Severity.INFO,
        ranks=_numbers(ranks),
        hosts=[first["host"]],
        summary=f"{first['launcher']} job on {first['host']}: {seen}.",
        evidence=[_evidence(row) for row in (ranks or members)[:8]],
        attributes={
            "job": first["job"],
            "launcher": first["launcher"],
            "world_size": size,
            "master": first["master"],
            "processes": dict(sorted(roles.items())),
            "run_dir": next((row["run_dir"] for row in members if row["run_dir"]), None),
            "basis": "processes",
        },
    )


def _gone(members: list[dict[str, Any]]) -> list[Finding]:
    gone = [row for row in members if row["role"] == "gone"]
    if not gone:
        return []
    ranks, pids = _numbers(gone), [row["pid"] for row in gone if row["pid"]]
    host = gone[0]["host"]
    who = rank_list(ranks) if ranks else f"{len(pids)} {'rank' if len(pids) == 1 else 'ranks'} (number unknown)"
    dead = f": pid {', '.join(map(str, pids))} ended, and its parent has not asked for it yet" if pids else ""
    verb = "has" if len(ranks or pids) == 1 else "have"
    return [
        Finding(
            code="rank.process_gone",
            severity=Severity.FAILURE,
            ranks=ranks,
            hosts=[host],
            summary=f"{_capital(who)} {verb} no live process on {host}{dead}.",
            evidence=[_evidence(row) for row in gone[:8]],
            attributes={"job": gone[0]["job"], "launcher": gone[0]["launcher"], "pids": pids, "basis": "processes"},
        )
    ]


def _unreadable(members: list[dict[str, Any]]) -> list[Finding]:
    unreadable = [row for row in members if row["role"] == "unreadable"]
    if not unreadable:
        return []
    ranks, pids = _numbers(unreadable), [row["pid"] for row in unreadable if row["pid"]]
    who = rank_list(ranks) if ranks else "processes that may be ranks"
    listed = ", ".join(map(str, pids[:8])) + (" …" if len(pids) > 8 else "")
    remedy = f"Run ddx as the owner of the job, or as root: sudo ddx why {pids[0] if pids else ''}".rstrip()
    return [
        Finding(
            code="rank.unreadable",
            severity=Severity.WARNING,
            ranks=ranks,
            hosts=[unreadable[0]["host"]],
            summary=f"{_capital(who)} could not be read (pid {listed}): this user has no permission. {remedy}",
            evidence=[_evidence(row) for row in unreadable[:8]],
            attributes={
                "job": unreadable[0]["job"],
                "reason": "not_permitted",
                "remedy": remedy,
                "pids": pids,
                "basis": "processes",
            },
        )
    ]


_HELD = {
    "T": ("rank.stopped", "is stopped by a signal (state T): it does nothing until it gets SIGCONT"),
    "t": ("rank.stopped", "is held by a debugger or tracer (state t)"),
    "D": (
        "rank.uninterruptible",
        "sits in an uninterruptible kernel call (state D), usually storage or a driver",
    ),
}


def _held(members: list[dict[str, Any]]) -> list[Finding]:
    """Ranks that the kernel does not let run."""
    findings = []
    for row in members:
        if row["role"] not in ("rank", "unreadable") or row["state"] not in _HELD:
            continue
        code, what = _HELD[row["state"]]
        who = "A process" if row["rank"] is None else f"Rank {row['rank']}"
        findings.append(
            Finding(
                code=code,
                severity=Severity.FAILURE if code == "rank.stopped" else Severity.NOTICE,
                ranks=_numbers([row]),
                hosts=[row["host"]],
                summary=f"{who} (pid {row['pid']}) {what}.",
                evidence=[_evidence(row)],
                attributes={
                    "job": row["job"],
                    "pid": row["pid"],
                    "state": row["state"],
                    "basis": "processes",
                },
            )
        )
    return findings


def _numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["rank"] for row in rows if row["rank"] is not None})


def _evidence(row: dict[str, Any]) -> Evidence:
    if row["pid"] is None:
        return Evidence(source=row["source"] or "table:ranks", quote=f"no process with RANK={row['rank']}")
    return Evidence(
        source=row["source"] or f"ranks:{row['pid']}",
        quote=f"pid {row['pid']} state {row['state'] or '?'} {(row['command'] or '')[:120]}".rstrip(),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


PROBE = Probe(
    id="jobs",
    title="Distributed jobs on this host",
    description=(
        "Finds the distributed PyTorch jobs that run on this host and says which process is which rank: launcher "
        "(torchrun, mp.spawn, accelerate, deepspeed, mpirun, Ray Train, Slurm, plain environment variables), world "
        "size, state, CPU use, command, where the output goes. Workers that load data or compile are shown with "
        "their rank. Also tells which ranks are gone, stopped, or may not be read. Looks at processes only; touches "
        "none of them."
    ),
    args=JobsArgs,
    finding_codes=(
        "job.found",
        "rank.process_gone",
        "rank.unreadable",
        "rank.stopped",
        "rank.uninterruptible",
    ),
    capture=_capture,
    parse=_parse,
    analyse=_analyse,
    table=(
        "SELECT rank, local_rank, pid, role, state, round(cpu_percent) AS cpu_percent, round(wall_s) AS wall_s, "
        "launcher, world_size, master, cwd, stdout, stderr, command, debug FROM ranks "
        "ORDER BY job, rank NULLS FIRST, role <> 'rank', pid"
    ),
)
