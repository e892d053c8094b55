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
    """What a picklable function returns for each incident, in order, from as many processes as there are CPUs.

    A caller that stops early closes the iterator: what has not begun then is left out.
    """
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        yield from pool.map(work, incidents)
