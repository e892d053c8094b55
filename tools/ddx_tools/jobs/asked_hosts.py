"""Of many hosts that were asked at a time: which did not answer, and whose clocks differ."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.model import Evidence, Finding, Severity, rank_list
from ddx_tools.store import Store

_CLOCK_S = 1.0
_MOST_NAMED = 8


def asked_host_findings(store: Store) -> Iterator[Finding]:
    """Findings about the rows of `asked_hosts`; hosts with the same reason are one."""
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
        lacking = f"; {rank_list(unseen)} {'was' if len(unseen) == 1 else 'were'} seen on no host" if unseen else ""
        yield Finding(
            code="host.unanswered",
            severity=Severity.WARNING,
            ranks=unseen if len(rows) == 1 else [],  # of several, nothing says which are where
            hosts=row["hosts"],
            summary=f"{named} {how}: {row['reason']}{lacking}.",
            evidence=[Evidence(source=f"asked_hosts:{row['hosts'][0]}", quote=row["reason"])],
            attributes={
                "state": row["state"],
                "reason": row["reason"],
                "remedy": row["remedy"],
                "ranks_unseen": unseen,
            },
        )
    yield from _clocks(store)


def _ranks_unseen(store: Store) -> list[int]:
    """Of the job's ranks, those that no host showed; none if hosts show different jobs."""
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
            summary=f"The clock of {row['host']} is at least {apart} that of the host that asked: times in logs and "
            "records of both cannot be compared as they stand.",
            evidence=[Evidence(source=f"asked_hosts:{row['host']}", quote=f"{row['low']} to {row['high']} s ahead")],
            attributes={"ahead_s": ahead, "uncertainty_s": round(row["high"] - row["low"], 3)},
        )
