"""Reads streams of operations: what one process enqueued on one communicator, block by block of its log.

A stream keeps counts, the last operations one by one, and for every 128 opCounts a checksum over what was
enqueued. Ranks that enqueued the same have the same checksums; where those differ, that part of the log is read again.
Sends and receives are separate: they raise opCount only on the ranks that take part.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from ddx_tools.parsers.nccl.nccl_blocks import NRANKS, PROC, NcclBlock, codes_of, values_of
from ddx_tools.parsers.nccl.nccl_lines import read_nccl_line

BUCKET_OPS = 128
"""The number of opCounts per checksum."""
TAIL_OPS = 128
"""The number of last opCounts of a stream whose operations are kept one by one."""
POINT_TO_POINT = frozenset({"Send", "Recv"})

_FIELDS = ("count", "datatype", "reduction", "root")
_MOST_CUTS = 64
_MOST_TAIL = 4 * TAIL_OPS
_COMM_POINTER = re.compile(r" comm (0x[0-9a-f]{1,16}) rank ")
_OWN_REDUCTIONS = 5
"""From here on (nccl.h: ncclNumOps) numbers stand for reductions that the program defined; ranks may number them
differently."""


class Op(NamedTuple):
    """One enqueued operation."""

    op_count: int
    name: str
    elements: int
    """The element count of the call."""
    datatype: int
    reduction: int
    root: int
    line: int
    """The line in its block, from 0."""


@dataclass
class Stream:
    """The operations of one process on one communicator within a block."""

    host: str
    pid: int
    pointer: str
    nranks: int
    first_line: int
    last_line: int
    first_op: int
    last_op: int
    names: dict[str, int] = field(default_factory=dict)
    """{operation: count}"""
    buckets: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """{opCount // BUCKET_OPS: (collectives, first opCount, last opCount, checksum)}"""
    peers: dict[tuple[str, int], int] = field(default_factory=dict)
    """{(Send or Recv, peer): count}"""
    tail: list[Op] = field(default_factory=list)
    """The last operations, in order."""


def streams_of(block: NcclBlock) -> list[Stream]:
    """Return the streams of a block, ordered by first line.

    A pointer that a new communicator reuses within the block gives two streams.
    """
    table, others = block.operations, block.others
    streams = _streams(table)
    seen = {(stream.host, stream.pid, stream.pointer): stream for stream in streams}
    cuts = []
    for number, text in others:
        if " Init START" in text and (line := read_nccl_line(text)):
            pointer = _COMM_POINTER.search(line.text)
            stream = seen.get((line.host, line.pid, pointer[1])) if pointer else None
            if stream and stream.first_line < number < stream.last_line:
                cuts.append(number)
    if not cuts:
        return streams
    import pyarrow.compute as pc

    edges = [-1, *cuts[:_MOST_CUTS], block.lines]
    parts = (
        table.filter(pc.and_(pc.greater(table["line"], low), pc.less_equal(table["line"], high)))
        for low, high in pairwise(edges)
    )
    return [stream for part in parts for stream in _streams(part)]


def _streams(table: Any) -> list[Stream]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.num_rows:
        return []
    table = table.combine_chunks()
    procs, pointers, ranks = (values_of(table, name) for name in ("proc", "pointer", "nranks"))
    owners = _numbered([PROC.search(value) for value in procs])
    owner = pc.take(pa.array(owners.codes, pa.int64()), codes_of(table, "proc"))
    stream = pc.add(pc.multiply(owner, len(pointers)), codes_of(table, "pointer").cast(pa.int64()))
    names = [value.decode("ascii", "replace").rstrip(":") for value in values_of(table, "name")]
    rows = pa.table(
        {
            "stream": stream,
            "name": codes_of(table, "name"),
            "op_count": table["op_count"],
            "bucket": pc.divide(table["op_count"], BUCKET_OPS),
            "sum": _contributions(table),
            "line": table["line"],
            "nranks": codes_of(table, "nranks"),
            "root": codes_of(table, "root"),
        }
    )
    found: dict[int, Stream] = {}
    ends = [("line", "min"), ("line", "max"), ("op_count", "min"), ("op_count", "max"), ("nranks", "max")]
    newest: dict[int, int] = {}
    for row in rows.group_by("stream", use_threads=False).aggregate(ends).to_pylist():
        owned = owners.values[row["stream"] // len(pointers)]
        pointer, nranks = pointers[row["stream"] % len(pointers)], NRANKS.match(ranks[row["nranks_max"]])
        if owned and nranks:
            host, pid = owned[1].decode(), int(owned[2])
            span = (row["line_min"], row["line_max"], row["op_count_min"], row["op_count_max"])
            found[row["stream"]] = Stream(host, pid, pointer.decode(), int(nranks[1]), *span)
            newest[row["stream"]] = row["op_count_max"]
    _count(rows, names, values_of(table, "root"), found)
    _keep_tail(table, rows, names, newest, found)
    return sorted(found.values(), key=lambda one: one.first_line)


class _Numbered(NamedTuple):
    codes: list[int]
    values: list[re.Match[bytes] | None]


def _numbered(matches: list[re.Match[bytes] | None]) -> _Numbered:
    """A code for each prefix, equal for equal (host, pid), so that all threads of a process count as one."""
    known: dict[tuple[bytes, bytes] | None, int] = {}
    values: list[re.Match[bytes] | None] = []
    codes = []
    for match in matches:
        key = (match[1], match[2]) if match else None
        if key not in known:
            known[key] = len(values)
            values.append(match)
        codes.append(known[key])
    return _Numbered(codes, values)


def _contributions(table: Any) -> Any:
    """Each row's contribution to its bucket's checksum: a product, so that differences in two fields cannot cancel
    out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number = table["op_count"].cast(pa.uint64())
    product = pc.add(pc.multiply(number, pa.scalar(0x9E3779B97F4A7C15, pa.uint64())), pa.scalar(1, pa.uint64()))
    for name in ("name", "count", "datatype", "reduction", "root"):
        hashes = pa.array([_odd_hash(name, value) for value in values_of(table, name)], pa.uint64())
        product = pc.multiply(product, pc.take(hashes, codes_of(table, name)))
    return product


@lru_cache(maxsize=65_536)
def _odd_hash(field_name: str, value: bytes) -> int:
    if field_name == "reduction":
        value = b"%d" % _reduction(value)
    digest = hashlib.blake2b(value, digest_size=8, person=field_name.encode()).digest()
    return int.from_bytes(digest, "little") | 1


def _reduction(value: bytes) -> int:
    return min(_integer(value), _OWN_REDUCTIONS)


def _integer(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) <= 18 else -1


def _count(rows: Any, names: list[str], roots: list[bytes], found: dict[int, Stream]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for row in rows.group_by(["stream", "name"], use_threads=False).aggregate([([], "count_all")]).to_pylist():
        if row["stream"] in found:
            found[row["stream"]].names[names[row["name"]]] = row["count_all"]
    p2p = pc.take(pa.array([name in POINT_TO_POINT for name in names]), rows["name"])
    if pc.any(p2p).as_py():
        ends = rows.filter(p2p).group_by(["stream", "name", "root"], use_threads=False).aggregate([([], "count_all")])
        for row in ends.to_pylist():
            if row["stream"] in found:
                end = (names[row["name"]], _integer(roots[row["root"]]))
                found[row["stream"]].peers[end] = row["count_all"]
        rows = rows.filter(pc.invert(p2p))
    sums = [([], "count_all"), ("op_count", "min"), ("op_count", "max"), ("sum", "sum")]
    for row in rows.group_by(["stream", "bucket"], use_threads=False).aggregate(sums).to_pylist():
        if row["stream"] in found:
            made = (row["count_all"], row["op_count_min"], row["op_count_max"], row["sum_sum"])
            found[row["stream"]].buckets[row["bucket"]] = made


def _keep_tail(table: Any, rows: Any, names: list[str], newest: dict[int, int], found: dict[int, Stream]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.array(list(newest), pa.int64())
    place = pc.index_in(rows["stream"], value_set=known)
    since = pc.subtract(pc.take(pa.array(list(newest.values()), pa.int64()), place), TAIL_OPS)
    last = pc.fill_null(pc.greater(rows["op_count"], since), False)
    codes = {name: codes_of(table, name).filter(last).to_pylist() for name in _FIELDS}
    values = {name: values_of(table, name) for name in _FIELDS}
    streams, name_codes, numbers, lines = (
        column.filter(last).to_pylist() for column in (rows["stream"], rows["name"], table["op_count"], table["line"])
    )
    for at, stream in enumerate(streams):
        count, datatype, reduction, root = (values[name][codes[name][at]] for name in _FIELDS)
        sizes = _integer(count), _integer(datatype), _reduction(reduction), _integer(root)
        op = Op(numbers[at], names[name_codes[at]], *sizes, lines[at])
        found[stream].tail.append(op)
    for each in found.values():
        del each.tail[:-_MOST_TAIL]
