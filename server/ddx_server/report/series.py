"""Charts of what was measured: step time and memory over the steps, bandwidth over message size.

One line per rank; with many ranks, only the ones that stand out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ddx_tools.analysis.bandwidth.measured import curves, read_points
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.printed_bandwidth import printed_bandwidth

_MOST_POINTS = 600
_MOST_LINES = 4
_FEWEST_POINTS = 3
_MOST_OPERATIONS = 6


@dataclass(frozen=True)
class SeriesLine:
    """The values of one rank, or a summary of many; None where there is no value."""

    label: str
    values: list[float | None]
    blamed: bool

    @property
    def known(self) -> list[float]:
        """The values that are not None."""
        return [value for value in self.values if value is not None]

    @property
    def median(self) -> str:
        """The median, formatted for a person."""
        return _told(median(self.known))

    @property
    def least(self) -> str:
        """The smallest value, formatted."""
        return _told(min(self.known))

    @property
    def most(self) -> str:
        """The largest value, formatted."""
        return _told(max(self.known))

    @property
    def last(self) -> str:
        """The last value, formatted."""
        return _told(self.known[-1])


@dataclass(frozen=True)
class SeriesChart:
    """Lines over the same steps."""

    title: str
    unit: str
    along: str
    x: list[float]
    lines: list[SeriesLine]
    in_bytes: bool = False
    """Whether `x` is a size in bytes, on a logarithmic axis."""

    def data(self) -> dict[str, Any]:
        """The chart's data for the script that draws it."""
        return asdict(self)


def _told(value: float) -> str:
    return f"{value:.4g}"


_CHARTS = (
    (
        "Step time, as recorded by the profiler",
        "ms",
        "SELECT rank, step AS x, step_ns / 1e6 AS y FROM trace_steps WHERE step IS NOT NULL AND step_ns IS NOT NULL",
    ),
    (
        "Step time outside collectives: a rank with more keeps the others waiting",
        "ms",
        "SELECT rank, step AS x, (step_ns - exposed_ns) / 1e6 AS y FROM trace_steps "
        "WHERE step IS NOT NULL AND step_ns IS NOT NULL AND exposed_ns IS NOT NULL",
    ),
    (
        "Step time, as printed in the logs",
        "ms",
        """
        SELECT rank, CAST(point->>0 AS BIGINT) AS x, max(CAST(point->>1 AS DOUBLE) * 1e3) AS y FROM (
            SELECT rank, unnest(CAST(details->'points' AS JSON[])) AS point FROM log_events
            WHERE kind = 'step' AND (details->'points') IS NOT NULL AND NOT coalesce(superseded, false))
        GROUP BY ALL
        """,
    ),
    (
        "Memory allocated to tensors",
        "GB",
        "SELECT rank, step AS x, allocated_bytes / 1e9 AS y FROM memory_series WHERE allocated_bytes IS NOT NULL",
    ),
    (
        "Host memory of the process",
        "GB",
        "SELECT rank, step AS x, rss_bytes / 1e9 AS y FROM memory_series WHERE rss_bytes IS NOT NULL",
    ),
)


def series_charts(store: Store, blamed: frozenset[int]) -> list[SeriesChart]:
    """Return line charts of what was measured: step times, memory, and bus bandwidth.

    Times and memory have one line per rank, or for many ranks the blamed ones and a summary. A chart of these with
    fewer than three steps is left out.
    """
    made = []
    for title, unit, query in _CHARTS:
        rows = store.query(f"SELECT rank, x, y FROM ({query}) WHERE x IS NOT NULL AND y IS NOT NULL ORDER BY x")
        x, lines = _lines(rows, blamed)
        if len(x) >= _FEWEST_POINTS:
            made.append(SeriesChart(title, unit, "step", x, lines))
    return [*made, *_bandwidth(store)]


def _bandwidth(store: Store) -> Iterator[SeriesChart]:
    """Bus bandwidth over message size, as nccl-tests or `ddx preflight` measured it."""
    by_operation = dict(list(curves(read_points(store) or printed_bandwidth(store)).items())[:_MOST_OPERATIONS])
    sizes = sorted({point.size_bytes for points in by_operation.values() for point in points})
    if not sizes:
        return
    lines = []
    for operation, points in by_operation.items():
        best = {point.size_bytes: point.busbw_gb_per_s for point in points}
        lines.append(SeriesLine(operation, [best.get(size) for size in sizes], blamed=False))
    yield SeriesChart("Bus bandwidth, as nccl-tests defines it", "GB/s", "message size", list(sizes), lines, True)


def _lines(rows: Sequence[Mapping[str, Any]], blamed: frozenset[int]) -> tuple[list[float], list[SeriesLine]]:
    by_rank: dict[int | None, dict[float, float]] = defaultdict(dict)
    for row in rows:
        by_rank[row["rank"]][row["x"]] = row["y"]
    x = sorted({step for values in by_rank.values() for step in values})
    # A long run is thinned to every n-th step, so that the page stays small.
    x = x[:: max(1, -(-len(x) // _MOST_POINTS))]
    # Lines that name no rank come last.
    ranks = sorted(by_rank, key=lambda rank: (rank not in blamed, rank is None, rank or 0))
    alone = ranks if len(ranks) <= _MOST_LINES else [rank for rank in ranks if rank in blamed][: _MOST_LINES - 1]
    lines = [SeriesLine(_name(rank), [by_rank[rank].get(at) for at in x], rank in blamed) for rank in alone]
    if others := [by_rank[rank] for rank in ranks if rank not in alone]:
        lines.append(SeriesLine(f"median of {len(others)} ranks", [_of(others, at, median) for at in x], False))
        lines.append(SeriesLine("maximum of these", [_of(others, at, max) for at in x], False))
    return x, [line for line in lines if line.known]


def _name(rank: int | None) -> str:
    return "no rank named" if rank is None else f"rank {rank}"


def _of(others: Sequence[Mapping[float, float]], at: float, choose: Any) -> float | None:
    known = [values[at] for values in others if at in values]
    return float(choose(known)) if known else None
