"""Decodes flight records in separate processes, in pieces of bounded size: small inputs in one process, large ones in
one per CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain, islice
from threading import Thread

from ddx_tools.probes.flight_recorder.decode import Decoded, DumpMaterial, decode
from ddx_tools.sources.workers import WorkerEnded, WorkerNotStarted, Workers, worker_count, workers

_PIECE_BYTES = 2 << 20
_PIECE_FILES = 64


def decode_all(materials: Iterable[DumpMaterial], meanwhile: Callable[[], None] | None = None) -> Iterator[Decoded]:
    """Decode dumps in pieces and yield the results in order; large inputs use one process per CPU.

    A dump that crashes such a process is reported in a line, and only it is lost. If there is more than one piece, a
    thread of this process runs `meanwhile` while others decode.
    """
    count = worker_count()
    with workers(count) as processes:
        pieces = _pieces(materials)
        first = list(islice(pieces, 2))
        # A daemon thread: an interrupt does not wait until it has loaded everything.
        beside = Thread(target=meanwhile if len(first) > 1 else None, daemon=True)
        beside.start()
        yield from _in_order(processes, chain(first, pieces), ahead=4 * count)
        beside.join()


def _submitted(processes: Workers, piece: list[DumpMaterial]) -> Future[Decoded]:
    return processes.submit(decode, piece, sum(material.size for material in piece))


def _pieces(materials: Iterable[DumpMaterial]) -> Iterator[list[DumpMaterial]]:
    piece: list[DumpMaterial] = []
    size = 0
    for material in materials:
        piece.append(material)
        size += material.size
        if size >= _PIECE_BYTES or len(piece) >= _PIECE_FILES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _in_order(processes: Workers, pieces: Iterator[list[DumpMaterial]], ahead: int) -> Iterator[Decoded]:
    """The results in order, few of them pending at a time, because they are large."""
    pending: deque[tuple[list[DumpMaterial], Future[Decoded]]] = deque()
    for piece in pieces:
        pending.append((piece, _submitted(processes, piece)))
        if len(pending) > ahead:
            yield from _results(processes, *pending.popleft())
    while pending:
        yield from _results(processes, *pending.popleft())


def _results(processes: Workers, piece: list[DumpMaterial], result: Future[Decoded]) -> Iterator[Decoded]:
    """The decoded piece; if it crashed its process, each dump is decoded by itself."""
    try:
        yield result.result()
    except WorkerNotStarted as error:
        others = f" and {len(piece) - 1} more" if len(piece) > 1 else ""
        yield Decoded(problems=[f"{piece[0].name}{others}: not read: {error}"], damaged=True)
    except (WorkerEnded, OSError) as error:
        if len(piece) == 1:
            yield Decoded(problems=[f"{piece[0].name}: not read: {error}"], damaged=True)
            return
        for alone in [([material], _submitted(processes, [material])) for material in piece]:
            yield from _results(processes, *alone)
