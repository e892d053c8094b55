"""Findings about jobs: which exist, and which of their ranks are gone, held or unreadable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.ranks.job_rows import by_job
from ddx_tools.analysis.ranks.process_words import process_words
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.wording import capital


def job_findings(store: Store) -> list[Finding]:
    """Return the findings about the rows of `ranks`, job by job."""
    findings: list[Finding] = []
    for members in by_job(store):
        findings += [_found(members), *_gone(members), *_unreadable(members), *_held(members)]
    return findings


def _found(members: list[dict[str, Any]]) -> Finding:
    first = members[0]
    roles = Counter(row["role"] for row in members)
    ranks = [row for row in members if row["role"] == "rank"]
    size = first["world_size"]
    if ranks:
        seen = f"{len(ranks)} of {size} ranks run here" if size else f"{len(ranks)} rank processes run here"
        seen += "" if size else "; the world size is unknown"
        if first["launcher"] == "spawn" and _numbers(ranks):
            seen += "; ranks are numbered in the order in which they were started"
    elif roles["unreadable"]:
        seen = "this user has no permission to read its ranks"
    else:
        seen = "no rank has a process (not started yet, or all ended)"
    return _finding(
        "job.found",
        Severity.INFO,
        _numbers(ranks),
        ranks or members,
        f"{first['launcher']} job on {first['host']}: {seen}.",
        launcher=first["launcher"],
        world_size=size,
        master=first["master"],
        processes=dict(sorted(roles.items())),
        run_dir=next((row["run_dir"] for row in members if row["run_dir"]), None),
    )


def _finding(
    code: str, severity: Severity, ranks: list[int], rows: list[dict[str, Any]], summary: str, **facts: Any
) -> Finding:
    """A finding about processes of one job."""
    return Finding(
        code=code,
        severity=severity,
        ranks=ranks,
        hosts=[rows[0]["host"]],
        summary=summary,
        evidence=[_evidence(row) for row in rows[:8]],
        attributes={"job": rows[0]["job"], **facts, "basis": "processes"},
    )


def _gone(members: list[dict[str, Any]]) -> Iterator[Finding]:
    gone = [row for row in members if row["role"] == "gone"]
    if not gone:
        return
    ranks, pids = _numbers(gone), [row["pid"] for row in gone if row["pid"]]
    who = rank_list(ranks) if ranks else f"{len(pids)} {'rank' if len(pids) == 1 else 'ranks'} (number unknown)"
    dead = f": pid {', '.join(map(str, pids))} ended, and its parent has not reaped it yet" if pids else ""
    verb = "has" if len(ranks or pids) == 1 else "have"
    said = f"{capital(who)} {verb} no live process on {gone[0]['host']}{dead}."
    facts = {"launcher": gone[0]["launcher"], "pids": pids}
    yield _finding("rank.process_gone", Severity.FAILURE, ranks, gone, said, **facts)


def _unreadable(members: list[dict[str, Any]]) -> Iterator[Finding]:
    unreadable = [row for row in members if row["role"] == "unreadable"]
    if not unreadable:
        return
    ranks, pids = _numbers(unreadable), [row["pid"] for row in unreadable if row["pid"]]
    who = rank_list(ranks) if ranks else "processes that may be ranks"
    listed = ", ".join(map(str, pids[:8])) + (" …" if len(pids) > 8 else "")
    remedy = f"Run ddx as the job's owner, or as root: sudo ddx why {pids[0] if pids else ''}".rstrip()
    said = f"{capital(who)} could not be read (pid {listed}): this user has no permission. {remedy}"
    facts = {"reason": "not_permitted", "remedy": remedy, "pids": pids}
    yield _finding("rank.unreadable", Severity.WARNING, ranks, unreadable, said, **facts)


_HELD = {
    "T": ("rank.stopped", "is stopped by a signal (state T): it does nothing until it receives SIGCONT"),
    "t": ("rank.stopped", "is held by a debugger or tracer (state t)"),
    "D": ("rank.uninterruptible", "sits in an uninterruptible kernel call (state D), usually storage or a driver"),
}


def _held(members: list[dict[str, Any]]) -> Iterator[Finding]:
    """Ranks that the kernel keeps from running: stopped, traced, or in an uninterruptible call."""
    for row in members:
        if row["role"] not in ("rank", "unreadable") or row["state"] not in _HELD:
            continue
        code, what = _HELD[row["state"]]
        who = "A process" if row["rank"] is None else f"Rank {row['rank']}"
        severity = Severity.FAILURE if code == "rank.stopped" else Severity.NOTICE
        said = f"{who} (pid {row['pid']}) {what}."
        yield _finding(code, severity, _numbers([row]), [row], said, pid=row["pid"], state=row["state"])


def _numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["rank"] for row in rows if row["rank"] is not None})


def _evidence(row: dict[str, Any]) -> Evidence:
    if row["pid"] is None:
        return Evidence(source=row["source"] or "table:ranks")
    return Evidence(source=row["source"] or f"ranks:{row['pid']}", quote=process_words(row))


# --- several hosts captured together: which did not answer, and whose clocks differ

_CLOCK_S = 1.0
_MOST_NAMED = 8


def asked_host_findings(store: Store) -> Iterator[Finding]:
    """Yield a finding for the queried hosts that gave no answer, or only part of one.

    Hosts with the same reason share a finding. Also yield one for each host whose clock differs from that of the
    querying host.
    """
    unseen = _ranks_unseen(store)
    rows = store.query(
        "SELECT state, reason, any_value(remedy) AS remedy, list(coalesce(host, target) ORDER BY target) AS hosts "
        "FROM asked_hosts WHERE state <> 'answered' GROUP BY state, reason ORDER BY min(target)"
    )
    for row in rows:
        named = ", ".join(row["hosts"][:_MOST_NAMED]) + (" …" if len(row["hosts"]) > _MOST_NAMED else "")
        many = len(row["hosts"]) > 1
        how = (
            f"answered{'' if many else 's'} in part"
            if row["state"] == "in_part"
            else f"{'do' if many else 'does'} not answer"
        )
        lacking = (
            f"; {rank_list(unseen)} {'was' if len(unseen) == 1 else 'were'} not seen on any host" if unseen else ""
        )
        yield Finding(
            code="host.unanswered",
            severity=Severity.WARNING,
            ranks=unseen if len(rows) == 1 else [],  # with several reasons, it is unknown whose they are
            hosts=row["hosts"],
            summary=f"{named} {how}: {row['reason']}{lacking}.",
            evidence=[Evidence(source=f"asked_hosts:{row['hosts'][0]}", quote=row["reason"])],
            attributes={name: row[name] for name in ("state", "reason", "remedy")} | {"ranks_unseen": unseen},
        )
    yield from _clocks(store)


def _ranks_unseen(store: Store) -> list[int]:
    """The job's ranks that no host showed; empty if hosts show different jobs."""
    rows = store.query(
        "SELECT max(world_size) AS size, count(DISTINCT (world_size, master)) AS jobs, list(DISTINCT rank) AS ranks "
        "FROM ranks WHERE world_size IS NOT NULL"
    )
    size, jobs, ranks = (rows[0][name] for name in ("size", "jobs", "ranks"))
    return sorted(set(range(size)) - set(ranks)) if jobs == 1 else []


def _clocks(store: Store) -> Iterator[Finding]:
    for row in store.query(
        "SELECT coalesce(host, target) AS host, clock_low_s AS low, clock_high_s AS high FROM asked_hosts "
        f"WHERE clock_low_s > {_CLOCK_S} OR clock_high_s < -{_CLOCK_S} ORDER BY target LIMIT {_MOST_NAMED}"
    ):
        ahead = row["low"] if row["low"] > 0 else row["high"]
        apart = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'}"
        yield Finding(
            code="host.clock_differs",
            severity=Severity.NOTICE,
            hosts=[row["host"]],
            summary=f"The clock of {row['host']} is at least {apart} the clock of the host that asked; times in the "
            "logs and records of the two cannot be compared directly.",
            evidence=[Evidence(source=f"asked_hosts:{row['host']}", quote=f"{row['low']} to {row['high']} s ahead")],
            attributes={"ahead_s": ahead, "uncertainty_s": round(row["high"] - row["low"], 3)},
        )


# --- a job's process in one line: what evidence quotes and `ddx show` prints
