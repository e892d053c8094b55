"""What was measured, over all ranks: one point for each operation, group, data type and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.preflight.busbw import algbw_gb_per_s, busbw_gb_per_s
from ddx_tools.store import Store

LATENCY_BYTES = 65536
"""A message up to here tells how long an operation takes at least."""

# By default nccl-tests averages over ranks (-a 1); so do we. Rows of nccl-tests have no rank and are points already.
_POINTS = """
SELECT run, operation, group_name, members, dtype, bytes, any_value(group_size) AS ranks, avg(time_s) AS time_s,
       any_value(busbw_gb_per_s) FILTER (rank IS NULL) AS printed_busbw, sum(wrong) AS wrong,
       any_value(source) AS source, any_value(source_line) AS source_line
FROM preflight_steps WHERE state = 'ended' AND operation <> 'pair' AND time_s > 0 AND group_name IS NOT NULL
GROUP BY run, operation, group_name, members, dtype, bytes, CASE WHEN rank IS NULL THEN step END
ORDER BY run, operation, group_name, members, dtype, bytes"""


@dataclass(frozen=True)
class Point:
    """One operation at one size. Bandwidth as nccl-tests defines it, 1e9 bytes a second; None where nothing travels."""

    run: str
    operation: str
    group: str
    members: tuple[int, ...]
    """Of a sub-group; () for the world."""
    dtype: str | None
    size_bytes: int
    ranks: int | None
    time_s: float
    busbw_gb_per_s: float | None
    algbw_gb_per_s: float | None
    wrong: int | None
    source: str
    source_line: int | None


def read_points(store: Store) -> list[Point]:
    """All points, by run, operation, group and size."""
    return [_point(row) for row in store.query(_POINTS)]


def _point(row: dict[str, Any]) -> Point:
    size, ranks, busbw = row["bytes"] or 0, row["ranks"], row["printed_busbw"]
    measured = (row["operation"], size, ranks or 0, row["time_s"])
    if busbw is None and ranks:
        busbw = busbw_gb_per_s(*measured)
    as_read = ("run", "operation", "dtype", "ranks", "time_s", "source", "source_line")
    return Point(
        **{name: row[name] for name in as_read},
        group=row["group_name"],
        members=tuple(row["members"] or ()),
        size_bytes=size,
        busbw_gb_per_s=busbw,
        algbw_gb_per_s=algbw_gb_per_s(*measured) if ranks else None,
        wrong=None if row["wrong"] is None else int(row["wrong"]),
    )


def fastest(points: Sequence[Point]) -> Point | None:
    """The point of the highest bus bandwidth."""
    return max((p for p in points if p.busbw_gb_per_s), key=lambda p: p.busbw_gb_per_s or 0.0, default=None)


def size_text(size_bytes: int) -> str:
    """`64 MiB`, `1.5 KiB`, `0 B`."""
    size, unit = float(size_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.4g} {unit}"


def table(store: Store) -> list[dict[str, Any]]:
    """For a person: each operation of each group with its latency and its best bandwidth."""
    series: dict[tuple[str, str, tuple[int, ...]], list[Point]] = {}
    for point in read_points(store):
        series.setdefault((point.run, point.operation, point.members), []).append(point)
    return [_summed_up(points) for points in series.values()]


def _summed_up(points: Sequence[Point]) -> dict[str, Any]:
    best, first = fastest(points), points[0]
    small = [point.time_s for point in points if point.size_bytes <= LATENCY_BYTES]
    return {
        "operation": first.operation,
        "group": first.group,
        "members": list(first.members) or None,
        "latency_us": round(min(small) * 1e6, 1) if small else None,
        "busbw_gb_per_s": float(f"{best.busbw_gb_per_s:.4g}") if best else None,
        "algbw_gb_per_s": float(f"{best.algbw_gb_per_s:.4g}") if best and best.algbw_gb_per_s else None,
        "at": size_text(best.size_bytes) if best else None,
        "sizes": len({point.size_bytes for point in points}),
        "dtypes": ", ".join(sorted({point.dtype for point in points if point.dtype and best})),
        "wrong": sum(point.wrong or 0 for point in points) or None,
    }
