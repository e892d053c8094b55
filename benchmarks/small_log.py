"""A log of a few lines: from the start of `ddx why` to its verdict, with what earlier starts worked out and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import DDX, Measurement
from benchmarks.process_tree import Cost, cost_of, middle

_LOG = Path(__file__).parents[1] / "tests" / "fixtures" / "logs" / "torchrun_raise.log"
_TIMES = 5


def measure() -> Iterator[Measurement]:
    """Both measurements."""
    with TemporaryDirectory(prefix="ddx-bench-") as cache:
        _why(cache)  # fills the cache, and compiles the modules
        yield _middle("a small log to its verdict", [_why(cache) for _ in range(_TIMES)], 0.8)
    yield _middle("the same with an empty cache", [_with_no_cache() for _ in range(_TIMES)], 1.5)


def _middle(what: str, costs: list[Cost], limit_s: float) -> Measurement:
    cost = middle(costs)
    return Measurement(what, cost.wall_s, limit_s, "s", f"wall, median of {_TIMES}; {cost.cpu_s:.2f} s of CPU")


def _with_no_cache() -> Cost:
    with TemporaryDirectory(prefix="ddx-bench-") as cache:
        return _why(cache)


def _why(cache: str) -> Cost:
    return cost_of(["env", f"XDG_CACHE_HOME={cache}", DDX, "why", str(_LOG), "--json"], (1, 3))
