"""Findings about bandwidth: measured against what the links should give, and pairs slower than the others."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Any

from ddx_tools.analysis.bandwidth.measured import BandwidthPoint, fastest, read_points, size_text
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.load import shipped
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.grouping import gathered

_SLOW_PAIR = 1 / 3
"""As a share of the usual bandwidth. All pairs exchange at the same time, so half of it occurs by chance."""
_FEWEST_PAIRS = 4


def speed_findings(store: Store) -> list[Finding]:
    """Return `preflight.bandwidth` and `preflight.below_expected_bandwidth` per run, and `preflight.slow_pair`."""
    places = _places(store)
    world = [p for p in read_points(store) if not p.members and p.operation == "all_reduce" and p.busbw_gb_per_s]
    by_run = gathered((point.run, point) for point in world)
    found = [finding for run, points in by_run.items() for finding in _of_run(points, expected_busbw(places[run]))]
    return found + _slow_pairs(store)


def _places(store: Store) -> dict[str, list[RankPlace]]:
    places: dict[str, list[RankPlace]] = defaultdict(list)
    rows = store.query("SELECT run, host, backend, device_name, nic_gb_per_s FROM preflight_ranks ORDER BY run, rank")
    for row in rows:
        ports = tuple(json.loads(row["nic_gb_per_s"] or "[]"))
        places[row["run"]].append(RankPlace(row["host"], row["backend"], row["device_name"], ports))
    return places


def _of_run(points: Sequence[BandwidthPoint], expected: Expectation) -> list[Finding]:
    best = fastest(points)
    if best is None or best.busbw_gb_per_s is None:
        return []
    small = min(points, key=lambda point: point.size_bytes)
    peak = f"{_rate(best.busbw_gb_per_s, expected)} bus bandwidth at {size_text(best.size_bytes)}"
    against = f"no expectation: {expected.why}"
    if expected.gb_per_s is not None:
        against = f"{best.busbw_gb_per_s / expected.gb_per_s:.0%} of {expected.gb_per_s:g} GB/s ({expected.why})"
    if expected.usual:
        against += f"; usual: {_usual_text(expected)}"
    attributes = {
        "operation": best.operation,
        "busbw_gb_per_s": best.busbw_gb_per_s,
        "bytes": best.size_bytes,
        "ranks": best.ranks,
        "expected_gb_per_s": expected.gb_per_s,
        "usual_gb_per_s": dict(expected.usual) or None,
        "latency_s": small.time_s,
    }
    told = Finding(
        code="preflight.bandwidth",
        severity=Severity.INFO,
        summary=f"all_reduce over {best.ranks or 'several'} ranks: {peak}, {small.time_s * 1e6:.0f} µs at "
        f"{size_text(small.size_bytes)}; {against}",
        evidence=[_evidence(best)],
        attributes=attributes,
    )
    judged = _below(points, expected)
    return [told] if judged is None else [judged, told]


def _below(points: Sequence[BandwidthPoint], expected: Expectation) -> Finding | None:
    """A finding if bandwidth is below the expectation; only messages large enough to fill the link count."""
    large = [point for point in points if point.size_bytes >= links().saturated_bytes]
    best = fastest(large)
    if best is None or best.busbw_gb_per_s is None or expected.gb_per_s is None:
        return None
    share = best.busbw_gb_per_s / expected.gb_per_s
    far_below = share < links().least_share
    if not far_below and best.busbw_gb_per_s >= expected.usual.get("ring", 0.0) * links().usual_share:
        return None
    usual = f"; usual: {_usual_text(expected)}" if expected.usual else ""
    return Finding(
        code="preflight.below_expected_bandwidth",
        severity=Severity.FAILURE if far_below else Severity.WARNING,
        summary=f"all_reduce over {best.ranks} ranks reaches {_rate(best.busbw_gb_per_s, expected)} bus bandwidth at "
        f"{size_text(best.size_bytes)}, {share:.0%} of {expected.why}{usual}",
        evidence=[_evidence(best)],
        attributes={
            "operation": best.operation,
            "busbw_gb_per_s": best.busbw_gb_per_s,
            "expected_gb_per_s": expected.gb_per_s,
            "usual_gb_per_s": dict(expected.usual) or None,
            "share": share,
            "bytes": best.size_bytes,
        },
    )


def _rate(gb_per_s: float, expected: Expectation) -> str:
    """A rate in GB/s, and in Gb/s if the network limits it, since ports state their rates so."""
    return f"{gb_per_s:.3g} GB/s" + (f" ({gb_per_s * 8:.3g} Gb/s)" if expected.of_network else "")


def _usual_text(expected: Expectation) -> str:
    names = {"ring": "by ring", "nvls": "by NVLS"}
    rates = (f"{rate:g} GB/s {names[name]}" for name, rate in expected.usual.items())
    return f"{', '.join(rates)}, with {links().usual_gpus} GPUs"


def _evidence(point: BandwidthPoint) -> Evidence:
    quote = f"{point.operation} {size_text(point.size_bytes)}: {point.time_s * 1e6:.1f} µs"
    return Evidence(source=point.source, line=point.source_line, quote=quote)


def _slow_pairs(store: Store) -> list[Finding]:
    rows = store.query(
        "SELECT run, least(rank, peer) AS low, greatest(rank, peer) AS high, max(busbw_gb_per_s) AS busbw, "
        "any_value(source) AS source, any_value(source_line) AS line FROM preflight_steps "
        "WHERE operation = 'pair' AND busbw_gb_per_s IS NOT NULL GROUP BY ALL ORDER BY run, busbw"
    )
    by_run = gathered((row["run"], row) for row in rows)
    found = []
    for pairs in by_run.values():
        usual = median(float(str(pair["busbw"])) for pair in pairs)
        slow = [pair for pair in pairs if float(str(pair["busbw"])) < usual * _SLOW_PAIR]
        if not slow or len(pairs) < _FEWEST_PAIRS:
            continue
        named = sorted((int(str(pair["low"])), int(str(pair["high"]))) for pair in slow)
        shared = set.intersection(*({low, high} for low, high in named))
        ranks = sorted(shared) if len(named) > 1 and len(shared) == 1 else sorted({r for pair in named for r in pair})
        words = ", ".join(f"{low}-{high}" for low, high in named[:5])
        found.append(
            Finding(
                code="preflight.slow_pair",
                severity=Severity.WARNING,
                ranks=ranks,
                summary=f"bandwidth between ranks {words} is {float(str(slow[0]['busbw'])):.3g} GB/s, between others "
                f"{usual:.3g} GB/s (median of {len(pairs)} pairs)",
                evidence=[Evidence(source=str(slow[0]["source"]), line=int(str(slow[0]["line"])))],
                attributes={"pairs": [list(pair) for pair in named], "usual_gb_per_s": usual, "common": sorted(shared)},
            )
        )
    return found


# --- expected bandwidth, from `knowledge/links.yaml` and the ports that ranks saw; often there is no expectation


@dataclass(frozen=True)
class GpuLinks:
    """The links of one GPU type; `gb_per_s` in one direction, None if nothing is expected."""

    name: re.Pattern[str]
    link: str
    gb_per_s: float | None
    per_peer: bool
    usual: Mapping[str, float]
    why_not: str


@dataclass(frozen=True)
class Links:
    """The contents of `knowledge/links.yaml`."""

    gpus: tuple[GpuLinks, ...]
    saturated_bytes: int
    least_share: float
    usual_share: float
    usual_gpus: int


@dataclass(frozen=True)
class RankPlace:
    """The place of a measured rank: its host, GPU and network ports."""

    host: str | None
    backend: str | None
    device_name: str | None
    nic_gb_per_s: tuple[float, ...] = ()
    """The rates of the RDMA ports on its host."""


@dataclass(frozen=True)
class Expectation:
    """The peak of the slowest link on the path, or why there is no expectation."""

    gb_per_s: float | None
    why: str
    usual: Mapping[str, float] = field(default_factory=dict)
    """Bus bandwidths that such hosts reach, by algorithm."""
    of_network: bool = False


@cache
def links() -> Links:
    """Return the link table that ships with ddx."""
    known = shipped("links.yaml")
    limits = {name: known[name] for name in ("saturated_bytes", "least_share", "usual_share", "usual_gpus")}
    return Links(tuple(map(_gpu_links, known["gpus"])), **limits)


def _gpu_links(entry: Mapping[str, Any]) -> GpuLinks:
    return GpuLinks(
        re.compile(rf"(?:NVIDIA )?(?:{entry['name']})"),
        entry.get("link", ""),
        entry.get("gb_per_s"),
        entry.get("per_peer", False),
        entry.get("usual", {}),
        entry.get("why_not", ""),
    )


def expected_busbw(places: Sequence[RankPlace]) -> Expectation:
    """Return the bus bandwidth that a large all_reduce over these ranks should come near and cannot exceed by much."""
    if not places or any(place.backend != "nccl" for place in places):
        return Expectation(None, "Gloo copies through host memory and sockets")
    names = {place.device_name for place in places}
    if len(names) != 1:
        return Expectation(None, "the GPUs are of different kinds, or unknown")
    name = names.pop()
    found = next((known for known in links().gpus if known.name.fullmatch(name or "")), None)
    if found is None:
        return Expectation(None, f"the link of {name or 'these GPUs'} is unknown")
    if found.gb_per_s is None:
        return Expectation(None, f"{name}: {found.why_not}")
    by_host = gathered((place.host, place) for place in places)
    if len(by_host) > 1:
        return _over_network(by_host.values(), _inside(found, max(map(len, by_host.values()))))
    rate = _inside(found, len(places))
    usual = found.usual if len(places) == links().usual_gpus else {}
    return Expectation(rate, f"{found.link} of {name}, {rate:g} GB/s in one direction", usual)


def _inside(known: GpuLinks, gpus: int) -> float:
    """What one of several GPUs of a host can send to the others; GPUs without a switch have one link to each peer."""
    return (known.gb_per_s or 0.0) * (max(gpus - 1, 1) if known.per_peer else 1)


def _over_network(hosts: Iterable[Sequence[RankPlace]], inside_gb_per_s: float) -> Expectation:
    rates = []
    for ranks in hosts:
        ports = ranks[0].nic_gb_per_s
        # A rank uses the ports near it, so ports in excess of one per rank may be idle.
        rates.append(sum(sorted(ports)[: len(ranks)]))
    slowest = min(rates)
    if not slowest:
        return Expectation(None, "the rates of the network ports are unknown")
    why = f"all network ports of a host, {slowest:g} GB/s ({slowest * 8:g} Gb/s) together"
    return Expectation(min(slowest, inside_gb_per_s), why, of_network=True)
