"""Decoding flight records: few of them here, many in processes of their own, in pieces of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain
from threading import Thread

from ddx_tools.flight_records.decode import Decoded, Material, decode
from ddx_tools.flight_records.workers import WorkerKilled, Workers, worker_count, workers

_PIECE_BYTES = 6 << 20
_PIECE_FILES = 64
_WORTH_PROCESSES_BYTES = 24 << 20
"""Starting a process costs as much as decoding this many bytes."""


def decode_all(materials: Iterable[Material], meanwhile: Callable[[], None] | None = None) -> Iterator[Decoded]:
    """Decode dumps in pieces, in their order; many bytes by as many processes as there are CPUs.

    If such a process is killed, the last piece says in words which dumps that costs. `meanwhile` is done by a thread of
    this one while they decode.
    """
    pieces = _pieces(materials)
    first: list[list[Material]] = []
    size = 0
    while size < _WORTH_PROCESSES_BYTES and (piece := next(pieces, None)):
        first.append(piece)
        size += sum(material.size for material in piece)
    count = worker_count()
    if size < _WORTH_PROCESSES_BYTES or count < 2:
        yield from map(decode, chain(first, pieces))
        return
    with workers(decode, count) as processes:
        # A daemon: an interrupt does not wait for what it loads.
        beside = Thread(target=meanwhile, daemon=True)
        beside.start()
        yield from _in_order(processes, chain(first, pieces), ahead=4 * count)
        beside.join()


def _pieces(materials: Iterable[Material]) -> Iterator[list[Material]]:
    piece: list[Material] = []
    size = 0
    for material in materials:
        piece.append(material)
        size += material.size
        if size >= _PIECE_BYTES or len(piece) >= _PIECE_FILES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _in_order(
    processes: Workers[Sequence[Material], Decoded], pieces: Iterator[list[Material]], ahead: int
) -> Iterator[Decoded]:
    """Results in order, with few of them waiting: they are large."""
    pending: deque[tuple[list[str], Future[Decoded]]] = deque()
    lost: list[str] = []
    for piece in chain(pieces, [None] * ahead):
        if piece is not None:
            pending.append(([material.name for material in piece], processes.submit(piece)))
        if pending and (piece is None or len(pending) > ahead):
            names, result = pending.popleft()
            try:
                yield result.result()
            except WorkerKilled:
                lost += names
    if lost:
        yield _lost(lost)


def _lost(names: Sequence[str]) -> Decoded:
    which = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    return Decoded(
        problems=[
            f"{which}: not read ({len(names)} flight records). A process that read them was killed, perhaps for "
            "lack of memory (dmesg tells). Run this again where there is more, or name fewer files at once."
        ],
        damaged=True,
    )
