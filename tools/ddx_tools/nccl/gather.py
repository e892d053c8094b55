"""All parts of all logs, put together: processes, and the operations of each on each communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddx_tools.formats.nccl_lines import plain, read_banner, read_nccl_line, read_test_rank
from ddx_tools.nccl.parts import Part, Piece, ends_within_line, read_parts
from ddx_tools.nccl.process_log import Membership, Place, ProcessLog, quote_of
from ddx_tools.nccl.streams import TAIL_OPS, Op, Stream

_MOST_PROCESSES = 20_000
_MOST_STREAMS = 50_000
_MASK = (1 << 64) - 1


@dataclass
class Bucket:
    """What a process enqueued on a communicator within 128 opCounts."""

    operations: int
    first: int
    last: int
    checksum: int
    part: int
    """Index of the part of a log in which it begins,"""
    start: int
    """the offset of the block there,"""
    first_line: int | None
    """and the 1-based number of that block's first line."""


@dataclass
class Total:
    """The operations of one process on one communicator, over all that was read."""

    process: ProcessLog
    membership: Membership | None
    pointer: str
    nranks: int
    source: str
    first_op: int | None = None
    last_op: int = -1
    """opCounts, sends and receives included."""
    names: Counter[str] = field(default_factory=Counter)
    peers: Counter[tuple[str, int]] = field(default_factory=Counter)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    tail: list[tuple[Op, int | None]] = field(default_factory=list)
    """The last operations, each with the 1-based number of its line if that is known."""
    gap: bool = False
    """The middle of its log was not read."""
    torn: int | None = None
    """The bucket in which reading began again: what lies before it there is unknown."""


@dataclass
class Gathered:
    """What some logs of NCCL hold."""

    parts: list[Part] = field(default_factory=list)
    processes: dict[tuple[str, int], ProcessLog] = field(default_factory=dict)
    totals: dict[tuple[str, int, int], Total] = field(default_factory=dict)
    """{(host, pid, number): total}"""
    banners: dict[str, tuple[str, str | None, Place]] = field(default_factory=dict)
    """{source: version without a prefix, so that nothing says which process printed it}"""
    lines: int = 0
    garbled: int = 0
    cut: set[tuple[str, int]] = field(default_factory=set)
    """Processes whose log ends within a line: what they wrote last is still in a buffer."""


def gather(parts: Iterable[Part]) -> Gathered:
    """Read parts of logs, those of one file in order."""
    found = Gathered(parts=list(parts))
    numbers = {id(part): number for number, part in enumerate(found.parts)}
    current: dict[tuple[str, int, str], int] = {}
    for piece in read_parts(found.parts):
        found.lines += piece.block.lines
        found.garbled += piece.block.garbled
        _take(found, piece, numbers[id(piece.part)], current)
    for total in found.totals.values():
        if total.torn is not None:
            total.buckets.pop(total.torn, None)
    _note_cut(found)
    return found


def _note_cut(found: Gathered) -> None:
    """A file of one process that ends within a line: more of it is still in a buffer."""
    writers: dict[str, list[tuple[str, int]]] = {}
    for key, process in found.processes.items():
        writers.setdefault(process.first.source, []).append(key)
    last = {part.source: part for part in found.parts}
    for source, keys in writers.items():
        if len(keys) == 1 and ends_within_line(last[source]):
            found.cut.add(keys[0])


def _take(found: Gathered, piece: Piece, part: int, current: dict[tuple[str, int, str], int]) -> None:
    """The lines and the streams of a block, by where they begin."""
    streams = iter(sorted(piece.streams, key=lambda stream: stream.first_line))
    stream = next(streams, None)
    for number, text in piece.block.others:
        while stream is not None and stream.first_line < number:
            _add_stream(found, piece, part, stream, current)
            stream = next(streams, None)
        _take_line(found, piece, number, text)
    while stream is not None:
        _add_stream(found, piece, part, stream, current)
        stream = next(streams, None)


def _take_line(found: Gathered, piece: Piece, number: int, text: str) -> None:
    line = read_nccl_line(text)
    source, at = piece.part.source, _numbered(piece, number)
    if line is None:
        if told := read_test_rank(text):
            host, pid, rank = told
            if process := _process(found, piece.part, host, pid, Place(source, at, text[:200].strip())):
                process.rank_label = rank
        elif (banner := read_banner(plain(text))) and source not in found.banners:
            found.banners[source] = (*banner, Place(source, at, text[:200].strip()))
        return
    place = Place(source, at, quote_of(line))
    process = _process(found, piece.part, line.host, line.pid, place)
    if process is not None:
        process.take(line, place)


def _process(found: Gathered, part: Part, host: str, pid: int, place: Place) -> ProcessLog | None:
    known = found.processes.get((host, pid))
    if known is None and len(found.processes) < _MOST_PROCESSES:
        known = found.processes[host, pid] = ProcessLog(host, pid, place, rank_label=part.rank_label)
    return known


def _numbered(piece: Piece, line: int) -> int | None:
    return None if piece.first_line is None else piece.first_line + line


def _add_stream(
    found: Gathered, piece: Piece, part: int, stream: Stream, current: dict[tuple[str, int, str], int]
) -> None:
    place = Place(piece.part.source, _numbered(piece, stream.first_line))
    process = _process(found, piece.part, stream.host, stream.pid, place)
    if process is None:
        return
    membership = process.membership_of(stream.pointer)
    pointer = (stream.host, stream.pid, stream.pointer)
    number = current.get(pointer)
    total = found.totals[stream.host, stream.pid, number] if number is not None else None
    if total is None or total.membership is not membership:
        if len(found.totals) >= _MOST_STREAMS:
            return
        number = current[pointer] = len(found.totals)
        total = Total(process, membership, stream.pointer, stream.nranks, piece.part.source)
        found.totals[stream.host, stream.pid, number] = total
    if not piece.part.at_start and piece.start == piece.part.start:
        total.gap = True
        if total.buckets:  # reading stopped somewhere within the last one
            del total.buckets[max(total.buckets)]
        total.torn = min(stream.buckets, default=None)
    _add(total, stream, piece, part)


def _add(total: Total, stream: Stream, piece: Piece, part: int) -> None:
    if piece.part.source != total.source and stream.last_op <= total.last_op:
        return  # the same lines in another file: output that was both kept for each rank and collected
    total.last_op = max(total.last_op, stream.last_op)
    total.first_op = stream.first_op if total.first_op is None else min(total.first_op, stream.first_op)
    total.names.update(stream.names)
    total.peers.update(stream.peers)
    for number, (count, first, last, checksum) in stream.buckets.items():
        if bucket := total.buckets.get(number):
            bucket.operations += count
            bucket.first, bucket.last = min(bucket.first, first), max(bucket.last, last)
            bucket.checksum = (bucket.checksum + checksum) & _MASK
        else:
            total.buckets[number] = Bucket(count, first, last, checksum, part, piece.start, piece.first_line)
    total.tail += [(op, _numbered(piece, op.line)) for op in stream.tail]
    if len(total.tail) > 2 * TAIL_OPS:
        newest = max(op.op_count for op, _ in total.tail)
        total.tail = [kept for kept in total.tail if kept[0].op_count > newest - TAIL_OPS][-4 * TAIL_OPS :]
