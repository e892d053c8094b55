"""Bandwidth measurements across all ranks: one point per operation, group, data type and size, as table and curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.model.grouping import gathered

LATENCY_BYTES = 65536
"""Messages up to this size show an operation's minimum time, its latency."""

# By default nccl-tests averages over ranks (-a 1); so do we. Rows of nccl-tests have no rank and are points already.
_POINTS = """
SELECT run, operation, group_name, members, dtype, bytes, any_value(group_size) AS ranks, avg(time_s) AS time_s,
       any_value(busbw_gb_per_s) FILTER (rank IS NULL) AS printed_busbw, sum(wrong) AS wrong,
       any_value(source) AS source, any_value(source_line) AS source_line
FROM preflight_steps WHERE state = 'ended' AND operation <> 'pair' AND time_s > 0 AND group_name IS NOT NULL
GROUP BY run, operation, group_name, members, dtype, bytes, CASE WHEN rank IS NULL THEN step END
ORDER BY run, operation, group_name, members, dtype, bytes"""


@dataclass(frozen=True)
class BandwidthPoint:
    """One operation at one size. Bandwidth as nccl-tests defines it, 1e9 bytes per second; None if no data is moved."""

    run: str
    operation: str
    group: str
    members: tuple[int, ...]
    """Members of a sub-group; () for the group of all ranks."""
    dtype: str | None
    size_bytes: int
    ranks: int | None
    time_s: float
    busbw_gb_per_s: float | None
    algbw_gb_per_s: float | None
    wrong: int | None
    source: str
    source_line: int | None


def read_points(store: Store) -> list[BandwidthPoint]:
    """Read all measured points, ordered by run, operation, group and size."""
    return [_point(row) for row in store.query(_POINTS)]


def _point(row: dict[str, Any]) -> BandwidthPoint:
    size, ranks, busbw = row["bytes"] or 0, row["ranks"], row["printed_busbw"]
    measured = (row["operation"], size, ranks or 0, row["time_s"])
    if busbw is None and ranks:
        busbw = busbw_gb_per_s(*measured)
    as_read = ("run", "operation", "dtype", "ranks", "time_s", "source", "source_line")
    return BandwidthPoint(
        **{name: row[name] for name in as_read},
        group=row["group_name"],
        members=tuple(row["members"] or ()),
        size_bytes=size,
        busbw_gb_per_s=busbw,
        algbw_gb_per_s=algbw_gb_per_s(*measured) if ranks else None,
        wrong=None if row["wrong"] is None else int(row["wrong"]),
    )


def fastest(points: Sequence[BandwidthPoint]) -> BandwidthPoint | None:
    """The point with the highest bus bandwidth; None if no point has one."""
    return max((p for p in points if p.busbw_gb_per_s), key=lambda p: p.busbw_gb_per_s or 0.0, default=None)


def size_text(size_bytes: int) -> str:
    """Format a number of bytes with a binary unit: `64 MiB`, `1.5 KiB`, `0 B`."""
    size, unit = float(size_bytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.4g} {unit}"


def table(store: Store) -> list[dict[str, Any]]:
    """Rows of the bandwidth table for a person: each operation of each group with its latency and best bandwidth."""
    series = gathered(((point.run, point.operation, point.members), point) for point in read_points(store))
    return [_summed_up(points) for points in series.values()]


def _summed_up(points: Sequence[BandwidthPoint]) -> dict[str, Any]:
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


# --- algorithm and bus bandwidth as nccl-tests defines them, so that figures are comparable
# Source: NVIDIA/nccl-tests 2.19.6 (a0b82b2), doc/PERFORMANCE.md, and `…GetBw` in src/*.cu for operations that the
# page leaves out. Its unit is GB/s = 1e9 bytes per second; S is the larger of a rank's input and output.

_ALL_BUT_OWN = frozenset({"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"})
"""A rank already has 1/n of the S bytes, so (n - 1)/n of them are moved."""

_WHOLE = frozenset({"broadcast", "reduce", "sendrecv", "pair", "hypercube"})
"""All S bytes leave or reach one rank."""


def algbw_gb_per_s(operation: str, size_bytes: int, ranks: int, time_s: float) -> float | None:
    """Algorithm bandwidth, S / t, in GB/s; None if no data is moved (a barrier) or no time was measured."""
    if size_bytes <= 0 or time_s <= 0:
        return None
    # src/hypercube.cu counts only what the other ranks send.
    travelling = size_bytes * (ranks - 1) / ranks if operation == "hypercube" else size_bytes
    return travelling / time_s / 1e9


def busbw_factor(operation: str, ranks: int) -> float | None:
    """The factor from algorithm to bus bandwidth: 2(n-1)/n, (n-1)/n or 1; None for other operations."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _ALL_BUT_OWN:
        return (ranks - 1) / ranks
    return 1.0 if operation in _WHOLE else None


def busbw_gb_per_s(operation: str, size_bytes: int, ranks: int, time_s: float) -> float | None:
    """Bus bandwidth: what one link of a rank carried in GB/s, independent of the number of ranks."""
    algbw, factor = algbw_gb_per_s(operation, size_bytes, ranks, time_s), busbw_factor(operation, ranks)
    return None if algbw is None or factor is None else algbw * factor


# --- the bandwidth curve as an image: bus bandwidth over message size, both logarithmic, one line per operation

_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 860, 480, 70, 50, 600, 370
# Okabe and Ito's colours, which colour-blind people can distinguish; line styles differ as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f")
_LEAST, _MOST = 1e-9, 1e9
"""GB/s; values outside this range are no measurements, and no axis extends that far."""


def write_curve(store: Store, findings: Sequence[Finding]) -> Iterator[bytes]:
    """Write the bandwidth curve as SVG: the group of all ranks, float32 if measured, and the expected peak if known."""
    series = curves(read_points(store))
    expected = next((f.attributes["expected_gb_per_s"] for f in findings if f.code == "preflight.bandwidth"), None)
    yield from (line.encode() + b"\n" for line in _svg(series, expected))


def curves(points: Sequence[BandwidthPoint]) -> dict[str, list[BandwidthPoint]]:
    """Group the measured points of the group of all ranks by operation, each list ordered by message size.

    Points without a plausible bandwidth are left out. If an operation was measured with several data types, only the
    one with the most points is kept.
    """
    by_kind = gathered(
        ((point.operation, point.dtype), point)
        for point in points
        if not point.members and point.size_bytes and _LEAST < (point.busbw_gb_per_s or 0.0) < _MOST
    )
    series: dict[str, list[BandwidthPoint]] = {}
    for (operation, _), of in by_kind.items():
        if len(of) > len(series.get(operation, ())):
            series[operation] = sorted(of, key=lambda point: point.size_bytes)
    return series


def _svg(series: dict[str, list[BandwidthPoint]], expected: float | None) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12"><title>Bus bandwidth by message size</title>'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    every = [point for points in series.values() for point in points]
    if not every:
        yield '<text x="70" y="80">no bandwidth was measured</text></svg>'
        return
    values = [point.busbw_gb_per_s or 0.0 for point in every] + ([expected] if expected else [])
    x = _Axis([float(point.size_bytes) for point in every], _LEFT, _PLOT_WIDTH, 2)
    y = _Axis(values, _TOP + _PLOT_HEIGHT, -_PLOT_HEIGHT, 10)
    yield f'<text x="{_LEFT}" y="28" font-size="15">Bus bandwidth by message size (nccl-tests definition)</text>'
    yield from _grid(x, y)
    if expected:
        at = y.place(expected)
        yield f'<path d="M{_LEFT} {at:.1f}h{_PLOT_WIDTH}" stroke="#b00020" stroke-dasharray="6 4"/>'
        yield f'<text x="{_LEFT + 6}" y="{at - 5:.1f}" fill="#b00020">expected {expected:g} GB/s</text>'
    for number, (operation, points) in enumerate(series.items()):
        yield from _line(number, operation, points, x, y)
    yield "</svg>"


class _Axis:
    """A logarithmic axis from the power of `base` below the smallest value to the power above the largest."""

    def __init__(self, values: Sequence[float], start: float, length: float, base: int) -> None:
        self.base, self.start, self.length = base, start, length
        self.low = math.floor(math.log(min(values), base))
        self.high = max(math.ceil(math.log(max(values), base)), self.low + 1)

    def place(self, value: float) -> float:
        return self.start + self.length * (math.log(value, self.base) - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        step = max(1, math.ceil((self.high - self.low) / most))
        return [float(self.base) ** power for power in range(self.low, self.high + 1, step)]


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    bottom = _TOP + _PLOT_HEIGHT
    for size in x.ticks(10):
        at = x.place(size)
        yield f'<path d="M{at:.1f} {_TOP}v{_PLOT_HEIGHT}" stroke="#e0e0e0"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{size_text(int(size))}</text>'
    for rate in y.ticks(8):
        at = y.place(rate)
        yield f'<path d="M{_LEFT} {at:.1f}h{_PLOT_WIDTH}" stroke="#e0e0e0"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{rate:g}</text>'
    yield f'<text x="{_LEFT + _PLOT_WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">message size</text>'
    middle = _TOP + _PLOT_HEIGHT / 2
    yield (
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">'
        "bus bandwidth, GB/s (1e9 bytes/s)</text>"
    )


def _line(number: int, operation: str, points: Sequence[BandwidthPoint], x: _Axis, y: _Axis) -> Iterator[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(x.place(point.size_bytes), y.place(point.busbw_gb_per_s or 1.0)) for point in points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    dashes = f' stroke-dasharray="{2 + number} 3"' if number % 2 else ""
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    for (px, py), point in zip(places, points, strict=True):
        words = f"{operation}, {size_text(point.size_bytes)}: {point.busbw_gb_per_s:.3g} GB/s"
        yield f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"><title>{escape(words)}</title></circle>'
    top = _TOP + 8 + 20 * number
    left = _LEFT + _PLOT_WIDTH + 20
    yield f'<path d="M{left} {top}h24" stroke="{colour}" stroke-width="2"{dashes}/>'
    yield f'<text x="{left + 32}" y="{top + 4}">{escape(operation)}</text>'
