"""Decoding flight records: few of them here, many in processes of their own, in pieces of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from ddx_tools.errors import UnreadableInput
from ddx_tools.flight_records.tables import RecordTables
from ddx_tools.flight_records.workers import WorkerKilled, Workers, worker_count, workers
from ddx_tools.formats.fr_dump import FrDump, read_dump
from ddx_tools.formats.fr_origin import DumpOrigin
from ddx_tools.formats.fr_pickle import MAX_BYTES

_PIECE_BYTES = 6 << 20
_PIECE_FILES = 64
_WORTH_PROCESSES_BYTES = 24 << 20
"""Starting a process costs as much as decoding this many bytes."""


@dataclass(frozen=True)
class Material:
    """A dump to decode: its bytes or the file that holds them, what to call it, and whose it is."""

    name: str
    """What a person knows it by: its path, or the rank that gave it."""
    origin: DumpOrigin
    data: bytes = b""
    file: str | None = None
    not_before_ns: int | None = None
    """A dump whose newest entry is older was left by another job."""

    @property
    def size(self) -> int:
        """Bytes to decode; 0 if nobody can tell."""
        if self.file is None:
            return len(self.data)
        try:
            return Path(self.file).stat().st_size
        except OSError:
            return 0


@dataclass
class Decoded:
    """The tables of some dumps, and what could not be read: lines for a person."""

    tables: RecordTables = field(default_factory=RecordTables)
    problems: list[str] = field(default_factory=list)
    damaged: bool = False
    """Something was lost, not only left out on purpose."""


def decode(materials: Sequence[Material]) -> Decoded:
    """Decode dumps, one after the other. One that cannot be read costs only itself."""
    found = Decoded()
    for material in materials:
        try:
            data = material.data if material.file is None else _bytes_of(material.file)
            dump = read_dump(data)
        except (UnreadableInput, OSError) as error:
            found.damaged = True
            found.problems.append(f"{material.name}: {error}")
            continue
        if _is_of_an_earlier_job(dump, material.not_before_ns):
            found.problems.append(f"{material.name}: left out, it is older than the job that runs now")
            continue
        if material.origin.rank is None:
            found.damaged = True
            found.problems.append(
                f"{material.name}: nothing says which rank wrote it, so it cannot be compared. "
                "A record does not hold its rank: rename the file to end in it, as in nccl_trace_rank_3, or say where "
                "its name holds it: --rank-pattern 'trace_r(\\d+)'."
            )
        found.tables.add(dump, material.origin)
    return found


def decode_all(materials: Iterable[Material]) -> Iterator[Decoded]:
    """Decode dumps in pieces, in their order; many bytes by as many processes as there are CPUs.

    If such a process is killed, the last piece says in words which dumps that costs.
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
        yield from _in_order(processes, chain(first, pieces), ahead=2 * count)


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


def _bytes_of(path: str) -> bytes:
    """The file, and a little more than is read of one: it may have grown since it was found."""
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


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


def _is_of_an_earlier_job(dump: FrDump, not_before_ns: int | None) -> bool:
    """A file in a default place may have been left by another job: its newest entry tells."""
    if not_before_ns is None:
        return False
    newest = max(dump.entries.numbers["created_ns"], default=0)  # 0 is unknown
    return 0 < newest < not_before_ns
