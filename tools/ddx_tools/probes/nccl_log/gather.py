"""Combines all NCCL logs: the processes, and the operations of each on each communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from ddx_tools.model.files.log_text import TextBlock
from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.lines.stream import Consumer
from ddx_tools.parsers.nccl.nccl_blocks import NcclBlock, read_block
from ddx_tools.parsers.nccl.nccl_lines import plain, read_banner, read_nccl_line, read_test_rank
from ddx_tools.probes.nccl_log.process_log import LinePlace, Membership, ProcessLog, quote_of
from ddx_tools.probes.nccl_log.streams import TAIL_OPS, Op, Stream, streams_of

_MOST_PROCESSES = 20_000
_MOST_STREAMS = 50_000
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class LogFile:
    """An NCCL log and where to read it."""

    source: str
    open: Callable[[], BinaryIO]
    """Opens the file at its beginning."""
    at_start: bool = True
    """Whether it begins at the file's first line, so lines can be numbered; False for the end of a log without its
    middle."""
    rank_label: int | None = None
    """The rank in the file's name."""


@dataclass
class EnqueuedRange:
    """The operations that a process enqueued on a communicator within 128 opCounts."""

    operations: int
    first: int
    last: int
    checksum: int
    log: int
    """Index of the log in which the range begins."""
    offset: int | None
    """The offset of its block in that file."""
    first_line: int
    """The line number (from 1) of that block's first line."""


@dataclass
class Total:
    """The operations of one process on one communicator, over everything read."""

    process: ProcessLog
    membership: Membership | None
    pointer: str
    nranks: int
    source: str
    first_op: int | None = None
    last_op: int = -1
    """The last opCount, sends and receives included."""
    names: Counter[str] = field(default_factory=Counter)
    peers: Counter[tuple[str, int]] = field(default_factory=Counter)
    buckets: dict[int, EnqueuedRange] = field(default_factory=dict)
    tail: list[tuple[Op, int | None]] = field(default_factory=list)
    """The last operations, each with its line number (from 1) if known."""
    gap: bool = False
    """Whether the middle of its log was not kept."""
    torn: int | None = None
    """The bucket in which the kept end of the log begins: operations before it are unknown."""


@dataclass
class NcclGathered:
    """The combined contents of NCCL logs."""

    logs: list[LogFile] = field(default_factory=list)
    processes: dict[tuple[str, int], ProcessLog] = field(default_factory=dict)
    totals: dict[tuple[str, int, int], Total] = field(default_factory=dict)
    """{(host, pid, number): total}"""
    banners: dict[str, tuple[str, str | None, LinePlace]] = field(default_factory=dict)
    """{source: version line without a prefix, so its process is unknown}"""
    cut: set[tuple[str, int]] = field(default_factory=set)
    """Processes whose log ends mid-line: their last output is still in a buffer."""


@dataclass
class _OfOneLog:
    """A consumer of the lines of one log (`ddx_tools.parsers.lines.stream`)."""

    reader: NcclLog
    log: LogFile
    begun: bool = False

    def look(self, block: TextBlock) -> tuple[NcclBlock, list[Stream]]:
        """Parse a block of the log, without changing any state.

        Returns its NCCL lines, and its operations grouped by process and communicator (streams).
        """
        read = read_block(block.data)
        return read, streams_of(read)

    def take(self, block: TextBlock, seen: tuple[NcclBlock, list[Stream]]) -> None:
        """Pass a block's lines on to the reader of all logs."""
        if not self.begun:
            self.begun = True
            self.reader.begin(self.log)
        self.reader.take(block, seen)


class NcclLog:
    """Collects the contents of NCCL logs, one log after the other."""

    def __init__(self) -> None:
        self._found = NcclGathered()
        self._current: dict[tuple[str, int, str], int] = {}

    def of(self, log: LogFile) -> Consumer:
        """Return the consumer for one log's lines. Logs must be consumed one after the other."""
        return _OfOneLog(self, log)

    def begin(self, log: LogFile) -> None:
        """Start a new log: the following lines belong to it."""
        self._found.logs.append(log)

    def take(self, block: TextBlock, seen: tuple[NcclBlock, list[Stream]]) -> None:
        """Add the contents of a block to what was collected, in line order.

        `seen` is what `look` returned for it: its NCCL lines, and its operations as streams.
        """
        read, found = seen
        streams = iter(sorted(found, key=lambda stream: stream.first_line))
        stream = next(streams, None)
        for number, text in read.others:
            while stream is not None and stream.first_line < number:
                self._add_stream(block, stream)
                stream = next(streams, None)
            self._take_line(block, number, text)
        while stream is not None:
            self._add_stream(block, stream)
            stream = next(streams, None)

    def gathered(self, open_ends: set[str]) -> NcclGathered:
        """Return everything that was collected from all logs; call it after the last log.

        `open_ends` names the sources that end in the middle of a line. If only one process wrote such a file, it is
        marked as cut: more output is still in its buffer.
        """
        for total in self._found.totals.values():
            if total.torn is not None:
                total.buckets.pop(total.torn, None)
        writers = gathered((process.first.source, key) for key, process in self._found.processes.items())
        # A single-process file that ends mid-line: more of it is still in a buffer.
        self._found.cut = {keys[0] for source, keys in writers.items() if len(keys) == 1 and source in open_ends}
        return self._found

    def _take_line(self, block: TextBlock, number: int, text: str) -> None:
        line = read_nccl_line(text)
        source, at = self._found.logs[-1].source, self._number(block, number)
        if line is None:
            if told := read_test_rank(text):
                host, pid, rank = told
                if process := self._process(host, pid, LinePlace(source, at, text[:200].strip())):
                    process.rank_label = rank
            elif (banner := read_banner(plain(text))) and source not in self._found.banners:
                self._found.banners[source] = (*banner, LinePlace(source, at, text[:200].strip()))
            return
        place = LinePlace(source, at, quote_of(line))
        process = self._process(line.host, line.pid, place)
        if process is not None:
            process.take(line, place)

    def _process(self, host: str, pid: int, place: LinePlace) -> ProcessLog | None:
        known = self._found.processes.get((host, pid))
        if known is None and len(self._found.processes) < _MOST_PROCESSES:
            label = self._found.logs[-1].rank_label
            known = self._found.processes[host, pid] = ProcessLog(host, pid, place, rank_label=label)
        return known

    def _number(self, block: TextBlock, line: int) -> int | None:
        return block.number + line if self._found.logs[-1].at_start else None

    def _add_stream(self, block: TextBlock, stream: Stream) -> None:
        found, log = self._found, self._found.logs[-1]
        place = LinePlace(log.source, self._number(block, stream.first_line))
        process = self._process(stream.host, stream.pid, place)
        if process is None:
            return
        membership = process.membership_of(stream.pointer)
        pointer = (stream.host, stream.pid, stream.pointer)
        number = self._current.get(pointer)
        total = found.totals[stream.host, stream.pid, number] if number is not None else None
        if total is None or total.membership is not membership:
            if len(found.totals) >= _MOST_STREAMS:
                return
            number = self._current[pointer] = len(found.totals)
            total = Total(process, membership, stream.pointer, stream.nranks, log.source)
            found.totals[stream.host, stream.pid, number] = total
        if not log.at_start and not total.gap:
            total.gap = True
            if total.buckets:  # the kept beginning stops somewhere in the last one
                del total.buckets[max(total.buckets)]
            total.torn = min(stream.buckets, default=None)
        self._add(total, stream, block)

    def _add(self, total: Total, stream: Stream, block: TextBlock) -> None:
        if self._found.logs[-1].source != total.source and stream.last_op <= total.last_op:
            return  # the same lines in another file: output kept per rank and also collected
        total.last_op = max(total.last_op, stream.last_op)
        total.first_op = stream.first_op if total.first_op is None else min(total.first_op, stream.first_op)
        total.names.update(stream.names)
        total.peers.update(stream.peers)
        log = len(self._found.logs) - 1
        for number, (count, first, last, checksum) in stream.buckets.items():
            if bucket := total.buckets.get(number):
                bucket.operations += count
                bucket.first, bucket.last = min(bucket.first, first), max(bucket.last, last)
                bucket.checksum = (bucket.checksum + checksum) & _MASK
            else:
                total.buckets[number] = EnqueuedRange(count, first, last, checksum, log, block.offset, block.number)
        total.tail += [(op, self._number(block, op.line)) for op in stream.tail]
        if len(total.tail) > 2 * TAIL_OPS:
            newest = max(op.op_count for op, _ in total.tail)
            total.tail = [kept for kept in total.tail if kept[0].op_count > newest - TAIL_OPS][-4 * TAIL_OPS :]
