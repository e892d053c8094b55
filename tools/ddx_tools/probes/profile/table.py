"""The table of `profile`: a line for each rank, kind of collective, and kernel class."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import Any

from ddx_tools.analysis.bandwidth.measured import size_text
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.profiles.rank_trace import bus_factor
from ddx_tools.probes.profile.findings import ProfiledStep, steps_of
from ddx_tools.probes.profile.matched import TraceComparison, comparison
from ddx_tools.probes.profile.samples import sample_table

_MOST_COLLECTIVES = 20
_MOST_BUCKETS = 12


def rows_for_person(store: Store) -> list[dict[str, Any]]:
    """Return the rows to show: what takes the time, how often per step, ms per step (for a collective: per call),
    share, details."""
    compared = store.derived(comparison)
    steps = steps_of(store, compared)
    ranks = [_rank_row(list(mine), compared) for _, mine in groupby(steps, key=lambda step: (step.rank, step.pid))]
    others = [*_collective_rows(store, compared, steps), *_bucket_rows(store), *_kernel_rows(store, steps)]
    return [*ranks, *others, *sample_table(store)]


def _row(what: str, each_step: float | None, ms: float, share: float | None, detail: str) -> dict[str, Any]:
    return {
        "what": what,
        "each_step": None if each_step is None else round(each_step, 1),
        "ms": round(ms, 3),
        "share": "" if share is None else f"{100 * share:.0f} %",
        "detail": detail,
    }


def _rank_row(steps: list[ProfiledStep], compared: TraceComparison) -> dict[str, Any]:
    rank, pid = steps[0].rank, steps[0].pid
    total = sum(step.ns for step in steps)
    shares = {name: sum(step.parts[name] for step in steps) / total for name in steps[0].parts}
    shares["waiting"] = sum(step.waiting_ns for step in steps) / total
    shares["exposed"] -= shares["waiting"]
    detail = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if share >= 0.005)
    ahead = compared.clock_ns.get(rank if rank is not None else -1, 0)
    detail += f"; its clock is {ahead / 1e6:+.3g} ms off" if abs(ahead) >= 1_000_000 else ""
    whose = f" of rank {rank}" if rank is not None else f" of pid {pid}" if pid is not None else ""
    return _row(f"a step{whose}", None, median(step.ns for step in steps) / 1e6, 1.0, detail)


def _collective_rows(store: Store, compared: TraceComparison, steps: list[ProfiledStep]) -> list[dict[str, Any]]:
    matched = gathered(((each.op, each.size_bytes, each.group), each) for each in compared.matched)
    rows = store.query(
        "SELECT op, size_bytes, coalesce(group_desc, group_name, '') AS group, max(group_size) AS members, "
        "count(*) AS count, median(end_ns - start_ns) AS ns, sum(end_ns - start_ns) AS all_ns "
        "FROM trace_collectives GROUP BY ALL ORDER BY all_ns DESC, op, size_bytes LIMIT " + str(_MOST_COLLECTIVES)
    )
    total = sum(step.ns for step in steps)
    found = []
    for row in rows:
        same = matched.get((row["op"], row["size_bytes"], row["group"]), [])
        # For a compared collective, only the time after the last rank entered is sending.
        ns = median(each.transfer_ns for each in same) if same else row["ns"]
        members = row["members"] or (len(compared.ranks) if same else None)
        detail = [row["group"]] if row["group"] else []
        detail += [f"{members} ranks"] if members else []
        if row["size_bytes"] and ns > 0:
            speed = row["size_bytes"] / ns
            detail.append(f"{speed:.3g} GB/s")
            detail += [f"bus {speed * bus_factor(row['op'], members):.3g} GB/s"] if members else []
        detail += ["since the last rank entered"] if same else ["includes waiting for late ranks"]
        size = f" of {size_text(row['size_bytes'])}" if row["size_bytes"] is not None else ""
        share = row["all_ns"] / total if total else None
        found.append(_row(f"{row['op']}{size}", row["count"] / max(1, len(steps)), ns / 1e6, share, ", ".join(detail)))
    return found


def _bucket_rows(store: Store) -> list[dict[str, Any]]:
    """The all_reduces of one step in order: DDP's buckets."""
    rows = store.query(
        "WITH one AS (SELECT rank, max(step) AS step FROM trace_collectives WHERE rank = "
        "(SELECT min(rank) FROM trace_collectives) GROUP BY rank) "
        "SELECT c.size_bytes, c.end_ns - c.start_ns AS ns, c.exposed_ns FROM trace_collectives c "
        "JOIN one USING (rank, step) WHERE op = 'all_reduce' AND size_bytes > 1024 ORDER BY start_ns"
    )
    if len(rows) < 2:
        return []
    sizes = [
        f"{size_text(size)}{f' x {n}' if (n := len(list(same))) > 1 else ''}"
        for size, same in groupby(row["size_bytes"] for row in rows)
    ]
    tail = rows[-1]["exposed_ns"] / max(1, rows[-1]["ns"])
    shown = ", ".join(sizes[:_MOST_BUCKETS]) + (", …" if len(sizes) > _MOST_BUCKETS else "")
    detail = f"in order: {shown}; {100 * tail:.0f} % of the last is exposed"
    return [_row("all_reduces of a step", len(rows), sum(row["ns"] for row in rows) / 1e6, None, detail)]


def _kernel_rows(store: Store, steps: list[ProfiledStep]) -> list[dict[str, Any]]:
    rows = store.query(
        'SELECT "class" AS what, sum(count) AS count, sum(took_ns) AS ns, arg_max(name, took_ns) AS longest '
        "FROM trace_kernels GROUP BY ALL ORDER BY ns DESC, what"
    )
    total, each = sum(step.ns for step in steps), max(1, len(steps))
    return [
        _row(
            f"kernels: {row['what']}",
            row["count"] / each,
            row["ns"] / each / 1e6,
            row["ns"] / total,
            row["longest"][:80],
        )
        for row in rows
    ]
