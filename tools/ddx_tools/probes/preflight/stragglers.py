"""Finds ranks that are slow before a collective, from equal work on each rank and from arrival times.

The time a rank spends *inside* a collective does not show whether it is slow: no rank leaves before the last one
enters, so the slowest spends the least time there, and the others all spend about the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered

_FEWEST_ROUNDS = 4
_SLOWER = 1.25
"""How many times the peers' median counts as slow, if the distributions also hardly overlap: see `_apart`."""
_MUCH_SLOWER = 1.5
_NOT_ON_CPU = 0.7


@dataclass(frozen=True)
class StragglerRound:
    """One round of one rank: the same work on all ranks, then a collective."""

    number: int
    compute_s: float
    cpu_s: float
    arrived_at_s: float
    """When it arrived at the collective, on rank 0's clock."""
    clock_error_s: float
    waited_s: float


@dataclass(frozen=True)
class Slow:
    """A rank that needs longer than its peers for the same work."""

    rank: int
    compute_s: float
    peers_compute_s: float
    on_cpu: float
    """Share of the time in which the rank had a CPU (CPU seconds / seconds)."""
    peers_on_cpu: float
    last: int
    """The number of rounds in which it arrived last, by more than the clock uncertainty."""
    rounds: int
    late_s: float
    """The median of its delay behind the peers' median arrival."""


def slow_ranks(by_rank: dict[int, Sequence[StragglerRound]]) -> list[Slow]:
    """Return the ranks clearly slower than their peers, slowest first; [] if there are none to compare with."""
    rounds = {rank: of for rank, of in by_rank.items() if len(of) >= _FEWEST_ROUNDS}
    if len(rounds) < 2:
        return []
    medians = {rank: median(r.compute_s for r in of) for rank, of in rounds.items()}
    usual = median(sorted(medians.values())[: len(medians) - 1])
    last = _last_arrivals(rounds)
    slow = []
    for rank, of in rounds.items():
        if medians[rank] < usual * _SLOWER:
            continue
        peers = [
            r for other, theirs in rounds.items() if other != rank and medians[other] < usual * _SLOWER for r in theirs
        ]
        if not peers or not _apart(of, peers):
            continue
        slow.append(
            Slow(
                rank=rank,
                compute_s=medians[rank],
                peers_compute_s=median(r.compute_s for r in peers),
                on_cpu=_on_cpu(of),
                peers_on_cpu=_on_cpu(peers),
                last=last[rank],
                rounds=len(of),
                late_s=_lateness_s(of, peers),
            )
        )
    return sorted(slow, key=lambda one: -one.compute_s)


def _apart(mine: Sequence[StragglerRound], peers: Sequence[StragglerRound]) -> bool:
    """Whether three quarters of the rank's rounds take longer than three quarters of its peers'."""
    quarter = quantiles([r.compute_s for r in mine], n=4)[0]
    return quarter > quantiles([r.compute_s for r in peers], n=4)[2]


def _on_cpu(rounds: Sequence[StragglerRound]) -> float:
    spent = sum(r.compute_s for r in rounds)
    return min(sum(r.cpu_s for r in rounds) / spent, 1.0) if spent > 0 else 1.0


def _last_arrivals(rounds: dict[int, Sequence[StragglerRound]]) -> Counter[int]:
    """How often each rank arrived last, as far as the clocks can show it."""
    meetings = gathered(
        (one.number, (one.arrived_at_s, one.clock_error_s, rank)) for rank, of in rounds.items() for one in of
    )
    last: Counter[int] = Counter()
    for arrivals in meetings.values():
        *_, before, latest = sorted(arrivals)
        if latest[0] - before[0] > latest[1] + before[1]:
            last[latest[2]] += 1
    return last


def _lateness_s(mine: Sequence[StragglerRound], peers: Sequence[StragglerRound]) -> float:
    theirs = gathered((one.number, one.arrived_at_s) for one in peers)
    behind = [one.arrived_at_s - median(theirs[one.number]) for one in mine if one.number in theirs]
    return median(behind) if behind else 0.0


def straggler_findings(store: Store) -> list[Finding]:
    """Return one `preflight.slow_rank` for each rank that needs longer for equal work."""
    rows = store.query(
        "SELECT r.run, r.rank, r.round, r.compute_s, r.cpu_s, r.waited_s, p.device, p.host, p.source, "
        "r.arrived_at_s - coalesce(p.clock_offset_s, 0) AS arrived_at_s, coalesce(p.clock_error_s, 0) AS error_s "
        "FROM preflight_rounds r JOIN preflight_ranks p USING (run, rank) "
        "WHERE least(r.round, r.compute_s, r.cpu_s, r.arrived_at_s, r.waited_s) IS NOT NULL "
        "AND r.compute_s > 0 ORDER BY r.run, r.rank, r.round"
    )
    runs: dict[str, dict[int, list[StragglerRound]]] = defaultdict(lambda: defaultdict(list))
    where = {}
    for row in rows:
        where[row["run"], row["rank"]] = (row["device"] or "cpu", row["host"], row["source"])
        times = (row["compute_s"], row["cpu_s"], row["arrived_at_s"], row["error_s"], row["waited_s"])
        runs[row["run"]][row["rank"]].append(StragglerRound(row["round"], *times))
    return [
        _finding(slow, *where[run, slow.rank], mean(r.waited_s for r in by_rank[slow.rank]))
        for run, by_rank in runs.items()
        for slow in slow_ranks(dict(by_rank))
    ]


def _finding(slow: Slow, device: str, host: str | None, source: str, waited_s: float) -> Finding:
    ratio = slow.compute_s / slow.peers_compute_s
    on_cpu = device == "cpu" or None
    starved = bool(on_cpu and slow.on_cpu < _NOT_ON_CPU * slow.peers_on_cpu)
    why = f"; it had a CPU for {slow.on_cpu:.0%} of that time, its peers for {slow.peers_on_cpu:.0%}" if starved else ""
    return Finding(
        code="preflight.slow_rank",
        severity=Severity.FAILURE if ratio >= _MUCH_SLOWER else Severity.WARNING,
        ranks=[slow.rank],
        hosts=[host] if host else [],
        summary=f"{rank_list([slow.rank])} needs {slow.compute_s * 1e3:.0f} ms for work that takes its peers "
        f"{slow.peers_compute_s * 1e3:.0f} ms ({ratio:.1f} times), and was last in {slow.last} of {slow.rounds} "
        f"rounds{why}",
        evidence=[Evidence(source=source, quote=f"equal work: {slow.compute_s * 1e3:.1f} ms (median)")],
        attributes={
            "compute_s": slow.compute_s,
            "peers_compute_s": slow.peers_compute_s,
            "ratio": ratio,
            "late_s": slow.late_s,
            "last": slow.last,
            "rounds": slow.rounds,
            "waited_s": waited_s,
            "device": "cpu" if on_cpu else "gpu",
            "starved": starved if on_cpu else None,
        },
    )
