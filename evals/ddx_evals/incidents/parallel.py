"""Work on many incidents at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from typing import TypeVar

from ddx_evals.incidents.incident import Incident

R = TypeVar("R")


def in_parallel(work: Callable[[Incident], R], incidents: Iterable[Incident]) -> Iterator[R]:
    """Apply a picklable function to each incident in as many processes as CPUs; yield the results in order.

    A caller that stops early closes the iterator; work not begun by then is skipped.
    """
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        yield from pool.map(work, incidents)
