"""Findings about the memory of all ranks: what holds it, what grows, which rank holds more, what is unsharded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from ddx_tools.analysis.bandwidth.measured import size_text
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.memory.estimate import MemoryPlan, estimate

_PHASES = {
    "optimizer state": "optimizer",
    "gathered parameters": "collective",
    "communication buffers": "collective",
    "loaded checkpoint": "load",
    "parameters": "init",
    "activations": "forward",
    "unknown": "backward",
}
"""The phase, by the holder whose allocation failed; allocations by autograd's threads have no Python frame."""
_MAX_EVIDENCE = 6
_SHARE_OF_RESERVED = 20
_SMALL = 6
_LEAST_POINTS = 5
_GROWTH = 1.08
_LEAST_GROWTH_BYTES = 16 << 20
_MOST_SETBACKS = 0.15
_LATE_SHARE = 0.3
"""The least share of growth in the second half of the steps: warm-up growth levels off."""
_SKEW, _LEAST_SKEW_BYTES = 1.25, 128 << 20
_MUCH_UNSHARDED = 0.1
_MOST_NAMES = 8


def memory_findings(store: Store) -> list[Finding]:
    """Return all findings about the memory of a job's ranks."""
    # Of several snapshots of one GPU, the most telling: the one when memory ran out, else the last one.
    devices = store.query(
        "SELECT * FROM memory_devices QUALIFY rank IS NULL OR row_number() OVER (PARTITION BY rank, device "
        "ORDER BY tried_bytes IS NULL, events DESC, source) = 1 ORDER BY rank, device, source"
    )
    held = _holders(store)
    return [
        *(_ran_out(row) for row in devices if row["tried_bytes"]),
        *(_held(row, held.get((row["source"], row["device"]), [])) for row in devices if row["allocated_bytes"]),
        *_kept(store),
        *_grows(store),
        *_rank_skew(store, held),
        *(_unsharded(store) or _whole_beside_shards(store)),
        *(
            estimate(MemoryPlan.model_validate_json(row["plan"]))
            for row in store.query("SELECT plan FROM memory_plans")
        ),
    ]


_Held = dict[tuple[str, int], list[dict[str, Any]]]


def _holders(store: Store) -> _Held:
    """The holders of each GPU at its peak or, where no history was recorded, at the end; most bytes first."""
    rows = store.query(
        "SELECT h.* FROM memory_holders h JOIN memory_devices d USING (source, device) "
        "WHERE (moment = 'peak') = (d.peak_bytes IS NOT NULL) ORDER BY bytes DESC, holder"
    )
    return gathered(((row["source"], row["device"]), row) for row in rows)


def _finding(
    code: str, severity: Severity, row: dict[str, Any], summary: str, at: dict[str, Any] | None = None, **facts: Any
) -> Finding:
    """A finding about one rank's snapshot; `at`: the row with the place, if it is a different row."""
    return Finding(
        code=code,
        severity=severity,
        ranks=_ranks(row),
        summary=summary,
        evidence=[Evidence(source=row["source"])],
        locations=_location(row if at is None else at),
        attributes={**facts, "basis": "snapshot"},
    )


def _ran_out(row: dict[str, Any]) -> Finding:
    unused = max(0, row["reserved_bytes"] - row["allocated_bytes"])
    tried = row["tried_bytes"]
    enough = unused >= tried and row["largest_free_bytes"] < tried
    for_what = f" It was for {row['tried_for']}." if _PHASES.get(row["tried_for"]) else ""
    return _finding(
        "memory.cuda_oom",
        Severity.FAILURE,
        row,
        f"{_whose(row)} ran out of GPU memory: it requested {size_text(tried)}; torch's allocator holds "
        f"{size_text(unused)} unused, in pieces of {size_text(row['largest_free_bytes'])} at most.{for_what}",
        tried_bytes=tried,
        phase=_PHASES.get(row["tried_for"]),
        steps_done=row["updates"] > 1,
        free_bytes=row["device_free_bytes"],
        allocated_bytes=row["allocated_bytes"],
        reserved_unallocated_bytes=unused,
        devices=[str(row["device"])],
        fragmented=enough and unused * _SHARE_OF_RESERVED >= row["reserved_bytes"],
        unused_is_small=unused * _SMALL < row["reserved_bytes"] or None,
    )


def _held(row: dict[str, Any], holders: list[dict[str, Any]]) -> Finding:
    peak = row["peak_bytes"] or row["allocated_bytes"]
    by_holder: Counter[str] = Counter()
    for each in holders:
        by_holder[each["holder"]] += each["bytes"]
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in by_holder.most_common(6))
    when = "at its peak" if row["peak_bytes"] else "when the snapshot was taken"
    return _finding(
        "memory.held",
        Severity.INFO,
        row,
        f"{_whose(row)} holds {size_text(peak)} of GPU memory {when}: {parts}.",
        at=holders[0] if holders else {},
        peak_bytes=peak,
        reserved_bytes=row["reserved_bytes"],
        by_holder=dict(by_holder),
        largest=max(by_holder, key=lambda name: by_holder[name], default=None),
    )


def _kept(store: Store) -> list[Finding]:
    rows = store.query("SELECT * FROM memory_holders WHERE moment = 'kept' ORDER BY rank, bytes DESC")
    found: dict[tuple[int | None, int], Finding] = {}
    for row in rows:
        each = row["bytes"] // row["blocks"]
        if row["bytes"] < _LEAST_GROWTH_BYTES or (row["rank"], row["device"]) in found:
            continue
        said = (
            f"{_whose(row)} keeps {size_text(each)} from each step: {row['blocks']} such pieces, allocated at "
            f"{_place(row)} with a backward between them, are still held at the end."
        )
        facts = {"per_step_bytes": each, "steps": row["blocks"], "holder": row["holder"]}
        found[row["rank"], row["device"]] = _finding("memory.grows", Severity.WARNING, row, said, **facts)
    return list(found.values())


def _grows(store: Store) -> list[Finding]:
    found = []
    for column, code, what in (
        ("allocated_bytes", "memory.grows", "Allocated GPU memory"),
        ("rss_bytes", "memory.host_grows", "Process memory"),
    ):
        rows = store.query(
            f"SELECT rank, step, {column} AS bytes, source FROM memory_series WHERE step IS NOT NULL AND {column} > 0 "
            "ORDER BY rank, step, time_s"
        )
        points = gathered((row["rank"], (row["step"], row["bytes"])) for row in rows)
        sources = {row["rank"]: row["source"] for row in rows}
        grown = {rank: mine for rank, mine in points.items() if _rises(mine)}
        if not grown:
            continue
        ranks = sorted(rank for rank in grown if rank is not None)
        (start, first), (end, last) = max(
            ((mine[0], mine[-1]) for mine in grown.values()), key=lambda ends: ends[1][1] - ends[0][1]
        )
        per_step = (last - first) / (end - start)
        found.append(
            Finding(
                code=code,
                severity=Severity.WARNING,
                ranks=ranks,
                summary=f"{what} of {rank_list(ranks)} grew from {size_text(first)} at step {start} to "
                f"{size_text(last)} at step {end}, by {size_text(int(per_step))} per step.",
                evidence=[Evidence(source=sources[rank], quote=f'"step": {end}') for rank in grown][:_MAX_EVIDENCE],
                attributes={
                    "first_bytes": first,
                    "last_bytes": last,
                    "steps": end - start,
                    "per_step_bytes": int(per_step),
                    "everywhere": len(grown) == len(points),
                    "basis": "report",
                },
            )
        )
    return found


def _rises(points: list[tuple[int, int]]) -> bool:
    """Whether the values rise until the end; the first fifth is warm-up."""
    points = points[len(points) // 5 :]
    if len(points) < _LEAST_POINTS:
        return False
    (start, first), (end, last) = points[0], points[-1]
    if end <= start or last < _GROWTH * first or last - first < _LEAST_GROWTH_BYTES:
        return False
    setbacks = sum(after < before for (_, before), (_, after) in pairwise(points))
    middle = next(size for step, size in points if step >= (start + end) / 2)
    return setbacks <= _MOST_SETBACKS * len(points) and last - middle >= _LATE_SHARE * (last - first)


def _rank_skew(store: Store, held: _Held) -> Iterator[Finding]:
    most: dict[str, dict[int, int]] = {"cuda": {}, "host": {}}
    sources: dict[tuple[str, int], str] = {}
    for what, sql in (
        ("cuda", "SELECT rank, coalesce(peak_bytes, allocated_bytes) AS bytes, source FROM memory_devices"),
        ("cuda", "SELECT rank, coalesce(peak_bytes, allocated_bytes) AS bytes, source FROM memory_series"),
        ("host", "SELECT rank, rss_bytes AS bytes, source FROM memory_series"),
    ):
        for row in store.query(f"SELECT * FROM ({sql}) WHERE rank >= 0 AND bytes > 0 ORDER BY rank, bytes"):
            most[what][row["rank"]] = max(row["bytes"], most[what].get(row["rank"], 0))
            sources[what, row["rank"]] = row["source"]
    for what, by_rank in most.items():
        for rank, size in by_rank.items():
            others = [each for other, each in by_rank.items() if other != rank]
            usual = median(others) if others else size
            if size < _SKEW * usual or size - usual < _LEAST_SKEW_BYTES or size <= max(others):
                continue
            more = _more_of(rank, held) if what == "cuda" else {}
            why = f", most of it {more['holder']}" if more else ""
            yield Finding(
                code="memory.rank_skew",
                severity=Severity.WARNING,
                ranks=[rank],
                summary=f"{rank_list([rank]).capitalize()} holds {size_text(size)} of "
                f"{'GPU' if what == 'cuda' else 'host'} memory, the others {size_text(int(usual))} (median){why}.",
                evidence=[Evidence(source=sources[what, rank])],
                locations=_location(more),
                attributes={
                    "of": what,
                    "bytes": size,
                    "others_bytes": int(usual),
                    "holder": more.get("holder"),
                    "basis": "snapshot" if more else "report",
                },
            )


def _more_of(rank: int, held: _Held) -> dict[str, Any]:
    """The row of the holder by which a rank exceeds its peers the most."""
    mine: Counter[tuple[str, str | None, int | None]] = Counter()
    others: dict[tuple[str, str | None, int | None], list[int]] = defaultdict(list)
    rows = {}
    for each in (row for holders in held.values() for row in holders):
        key = each["holder"], each["file"], each["line"]
        if each["rank"] == rank:
            mine[key] += each["bytes"]
            rows[key] = each
        else:
            others[key].append(each["bytes"])
    best = max(mine, key=lambda key: mine[key] - (median(others[key]) if others[key] else 0), default=None)
    return rows[best] if best else {}


def _unsharded(store: Store) -> list[Finding]:
    rows = store.query(
        "SELECT rank, module, name, max(bytes) AS bytes, bool_or(sharded) AS sharded, min(source) AS source "
        "FROM memory_parameters WHERE bytes > 0 GROUP BY ALL ORDER BY rank, bytes DESC, module, name"
    )
    first = [row for row in rows if row["rank"] == rows[0]["rank"]]
    whole = [row for row in first if not row["sharded"]]
    if not whole or len(whole) == len(first):  # a replicated model is not meant to be sharded
        return []
    size, total = sum(row["bytes"] for row in whole), sum(row["bytes"] for row in first)
    modules = list(dict.fromkeys(row["module"] or "the root" for row in whole))
    more = f" and {len(modules) - _MOST_NAMES} more" if modules[_MOST_NAMES:] else ""
    named = ", ".join(modules[:_MOST_NAMES]) + more
    ranks = sorted({row["rank"] for row in rows if row["rank"] is not None})
    name = f"{whole[0]['module']}.{whole[0]['name']}" if whole[0]["module"] else whole[0]["name"]
    return [
        Finding(
            code="memory.unsharded",
            severity=Severity.WARNING if size >= _MUCH_UNSHARDED * total else Severity.INFO,
            ranks=ranks,
            summary=f"{len(whole)} of {len(first)} parameters ({size_text(size)} of {size_text(total)}) are unsharded "
            f"on every rank, whereas the rest is sharded: {named}.",
            evidence=[Evidence(source=whole[0]["source"], quote=f'"name": "{name}"')],
            attributes={
                "modules": modules[:_MOST_NAMES],
                "parameters": len(whole),
                "bytes": size,
                "share": round(size / total, 3),
                "basis": "report",
            },
        )
    ]


def _whole_beside_shards(store: Store) -> list[Finding]:
    """From snapshots: parameters still unsharded at the end, whereas FSDP sharded others."""
    rows = store.query(
        "SELECT * FROM memory_holders WHERE moment = 'end' AND holder IN ('parameters', 'sharded parameters') "
        "AND source = (SELECT source FROM memory_holders WHERE holder = 'sharded parameters' AND moment = 'end' "
        "ORDER BY rank, source DESC LIMIT 1) ORDER BY bytes DESC"
    )
    whole = [row for row in rows if row["holder"] == "parameters"]
    size, total = sum(row["bytes"] for row in whole), sum(row["bytes"] for row in rows)
    if not whole or size < _MUCH_UNSHARDED * total:
        return []
    said = (
        f"{_whose(whole[0])} holds {size_text(size)} of unsharded parameters and {size_text(total - size)} of "
        f"parameters that FSDP sharded; the largest was allocated at {_place(whole[0])}."
    )
    facts = {"modules": [], "bytes": size, "share": round(size / total, 3)}
    return [_finding("memory.unsharded", Severity.WARNING, whole[0], said, **facts)]


def _place(row: dict[str, Any]) -> str:
    return (
        f"{row['file'].rsplit('/', 1)[-1]}:{row['line']} {row['function']}" if row["file"] else "no line of the program"
    )


def _location(row: dict[str, Any]) -> list[Location]:
    return [Location(file=row["file"], line=row["line"], function=row["function"])] if row.get("file") else []


def _ranks(row: dict[str, Any]) -> list[int]:
    return [row["rank"]] if row["rank"] is not None else []


def _whose(row: dict[str, Any]) -> str:
    return rank_list(_ranks(row)).capitalize() if row["rank"] is not None else "The process"


def memory_table(store: Store) -> list[dict[str, Any]]:
    """Return a row for each kind of holder (parameters, activations …) on each GPU at its peak, most bytes first."""
    rows = []
    for (_, device), holders in _holders(store).items():
        for row in holders[:12]:
            place = _place(row) if row["file"] else ""
            rank = "" if row["rank"] is None else row["rank"]
            said = {"holder": row["holder"], "bytes": row["bytes"], "size": size_text(row["bytes"])}
            rows.append({"rank": rank, "gpu": device, **said, "blocks": row["blocks"], "place": place})
    return sorted(rows, key=lambda row: (str(row["rank"]), row["gpu"], -row["bytes"]))
