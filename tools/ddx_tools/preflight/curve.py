"""The bandwidth curve as a picture: bus bandwidth over message size, both logarithmic, one line an operation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from ddx_tools.model import Finding
from ddx_tools.preflight.measured import Point, read_points, size_text
from ddx_tools.store import Store

_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 860, 480, 70, 50, 600, 370
# Okabe and Ito's colours, which people with colour-blindness can tell apart; marks differ besides.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f")
_LEAST, _MOST = 1e-9, 1e9
"""GB/s; what somebody wrote beyond that is no measurement, and no axis reaches so far."""


def write_curve(store: Store, findings: Sequence[Finding]) -> Iterator[bytes]:
    """An SVG of the world group, float32 (or what there is), and the expected peak if there is one."""
    series = _series(read_points(store))
    expected = next((f.attributes["expected_gb_per_s"] for f in findings if f.code == "preflight.bandwidth"), None)
    yield from (line.encode() + b"\n" for line in _svg(series, expected))


def _series(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points with a bandwidth by operation; of several data types the one with most sizes."""
    by_kind: dict[tuple[str, str | None], list[Point]] = {}
    for point in points:
        if not point.members and point.size_bytes and _LEAST < (point.busbw_gb_per_s or 0.0) < _MOST:
            by_kind.setdefault((point.operation, point.dtype), []).append(point)
    series: dict[str, list[Point]] = {}
    for (operation, _), of in by_kind.items():
        if len(of) > len(series.get(operation, ())):
            series[operation] = sorted(of, key=lambda point: point.size_bytes)
    return series


def _svg(series: dict[str, list[Point]], expected: float | None) -> Iterator[str]:
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
    """A logarithmic axis from the power of `base` below the least value to that above the largest."""

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


def _line(number: int, operation: str, points: Sequence[Point], x: _Axis, y: _Axis) -> Iterator[str]:
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
