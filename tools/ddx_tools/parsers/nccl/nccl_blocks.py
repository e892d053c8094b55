"""Reads blocks of an NCCL log into columns: a row for each operation, and the few other lines that matter verbatim.

    node:42:42 [0] NCCL INFO AllReduce: opCount 1e sendbuff 0x… recvbuff 0x… count 4194304 datatype 7 op 0 root 0
        comm 0x… [nranks=8] stream 0x…                          one line; enqueue.cc of 2.18 to 2.30

Such a line is written when the operation is enqueued: it does not show its start or end. opCount is hexadecimal, counts
the launches of a communicator, and is shared by all operations of one launch (`ncclProxyStart` increments it). For Send
and Recv, `root` is the peer.

Millions of such lines are read by Arrow: it splits the block, finds the lines, and reads their words as columns of a
blank-separated table. No such line becomes a Python object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.redaction.text import redact

_NEEDLE = b": opCount "
_MARKS = (b"NCCL ", b"RCCL version", b" Pid ")
"""Every line read here contains one of these."""
_MATTERS = (
    r"NCCL (?:INFO .*(?:comm 0x|Init timings| set |Using | channels|Channel [0-9]|Trees \[|Connected all|cudaDriver"
    r"|NET/OFI|No device found|, retrying|async event| -> [0-9]|Bytes -> Algo|NCCL version)|WARN |ERROR |version [0-9])"
    r"|RCCL version : [0-9]|# +Rank +[0-9]+ .*Pid +[0-9]+ on "
)
_WORDS = 24
"""The number of words in an operation's line without labels."""
# Word positions, counted from the end of the line.
_PLACES = {"proc": 24, "name": 20, "op_count": 18, "count": 12, "datatype": 10, "reduction": 8, "root": 6}
_PLACES |= {"pointer": 4, "nranks": 3}
_MOST_WIDTHS = 8
PROC = re.compile(rb"([A-Za-z0-9_][\w.-]{0,252}):(\d{1,10}):\d{1,10}$")
_POINTER = re.compile(rb"^0x[0-9a-f]{1,16}$")
NRANKS = re.compile(rb"^\[nranks=(\d{1,7})\]$")
_NAME = re.compile(rb"^([A-Za-z]\w{0,40}):$")


@dataclass
class NcclBlock:
    """The contents of one block of a log. Lines count from 0 within it."""

    lines: int
    operations: Any
    """An Arrow table: proc (`host:pid:tid`), name (`AllReduce:`), op_count (int64), count, datatype, reduction, root,
    pointer, nranks (`[nranks=8]`), line (int32); columns without a type are words of the line, dictionary-encoded."""
    others: list[tuple[int, str]] = field(default_factory=list)
    """Other NCCL lines that matter, as (line, text)."""


def read_block(data: bytes) -> NcclBlock:
    """Read a block of whole lines, cleaned by `ddx_tools.model.files.log_text`. Accepts any bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if b"\r" in data:
        data = data.replace(b"\r", b" ")
    if not any(mark in data for mark in _MARKS):
        return NcclBlock(data.count(b"\n"), no_operations())
    if (operations := _nothing_else(data)) is not None:
        return NcclBlock(operations.num_rows, operations)
    lines = pc.split_pattern(pa.array([data], pa.binary()), b"\n").flatten()
    is_op = pc.match_substring(lines, _NEEDLE)
    numbers = pc.indices_nonzero(is_op)
    block = NcclBlock(len(lines) - 1, no_operations())
    if len(numbers) < len(lines):
        block.others = _others(lines, is_op)
    if len(numbers):
        block.operations = _operations(lines.filter(is_op), numbers)
    return block


def _nothing_else(data: bytes) -> Any:
    """The operations of a block that contains nothing else, as in hours of log before a hang: words are read in place.

    Returns None for any other block.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    first = data[: data.find(b"\n") + 1]
    if _NEEDLE not in first or not data.endswith(b"\n") or _NEEDLE not in data[data.rfind(b"\n", 0, -1) + 1 :]:
        return None
    table = _columns(pa.py_buffer(data), first.count(b" ") + 1)
    if table is None:
        return None
    numbers = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), table.num_rows)), 1).cast(pa.int32())
    operations = _conforming(table.append_column("line", numbers))
    return operations if operations.num_rows == table.num_rows else None


def _others(lines: Any, is_op: Any) -> list[tuple[int, str]]:
    import pyarrow.compute as pc

    numbers = pc.indices_nonzero(pc.invert(is_op))
    rest = lines.take(numbers) if len(numbers) < len(lines) else lines
    matter = pc.match_substring_regex(rest, _MATTERS)
    texts = _without_secrets([text.decode("utf-8", "replace") for text in rest.filter(matter).to_pylist()])
    return list(zip(numbers.filter(matter).to_pylist(), texts, strict=True))


def _without_secrets(lines: list[str]) -> list[str]:
    clean = redact("\n".join(lines)).split("\n")
    return clean if len(clean) == len(lines) else [redact(line) for line in lines]


# --- reading words into columns


def _operations(lines: Any, numbers: Any) -> Any:
    """A table with a row for each operation: the words of its line, dictionary-encoded, and the line's number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = numbers.cast(pa.int32())
    width = lines[0].as_py().count(b" ") + 1
    if (table := _columns(_joined(lines), width)) is not None:
        return _conforming(table.append_column("line", numbers))
    tables = []
    for _ in range(_MOST_WIDTHS):  # labels before the prefix add words, but not on all lines
        if not len(lines):
            break
        width = lines[0].as_py().count(b" ") + 1
        fits = pc.equal(pc.count_substring(lines, b" "), width - 1)
        if (table := _columns(_joined(lines.filter(fits)), width)) is not None:
            tables.append(_conforming(table.append_column("line", numbers.filter(fits))))
        rest = pc.invert(fits)
        lines, numbers = lines.filter(rest), numbers.filter(rest)
    return pa.concat_tables(tables).unify_dictionaries().sort_by("line") if tables else no_operations()


def _joined(lines: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def _columns(text: Any, width: int) -> Any:
    """The words of lines with `width` words each, as columns; None if any line has a different number."""
    import pyarrow as pa
    import pyarrow.csv

    if width < _WORDS:
        return None
    names = [f"word{width - place}" for place in range(width)]
    wanted = {name: f"word{place}" for name, place in _PLACES.items()}
    types = dict.fromkeys(wanted.values(), pa.dictionary(pa.int32(), pa.binary())) | {wanted["op_count"]: pa.binary()}
    try:
        read = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=text.size + 1),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=" ", quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(wanted.values()), column_types=types, strings_can_be_null=False, check_utf8=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    return read.rename_columns(list(wanted))


def _conforming(table: Any) -> Any:
    """The rows with valid words, with opCount as a number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.combine_chunks()
    for name, pattern in (("proc", PROC), ("name", _NAME), ("pointer", _POINTER), ("nranks", NRANKS)):
        fits = [pattern.search(value) is not None for value in values_of(table, name)]
        if not all(fits):
            table = table.filter(pc.take(pa.array(fits, pa.bool_()), codes_of(table, name))).combine_chunks()
            if not table.num_rows:
                return no_operations()
    try:
        numbers = _from_hexadecimal(table["op_count"])
    except pa.ArrowInvalid:
        table = table.filter(pc.match_substring_regex(table["op_count"], "^[0-9a-f]{1,15}$")).combine_chunks()
        numbers = _from_hexadecimal(table["op_count"])
    return table.set_column(table.schema.get_field_index("op_count"), "op_count", numbers)


def _from_hexadecimal(digits: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow reads hexadecimal numbers after 0x. Null stays null.
    return pc.binary_join_element_wise(b"0x", digits, b"").cast(pa.string()).cast(pa.int64())


def no_operations() -> Any:
    """Return an empty operations table."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.binary())
    types = dict.fromkeys(_PLACES, word) | {"op_count": pa.int64(), "line": pa.int32()}
    return pa.schema(types).empty_table()


def values_of(table: Any, name: str) -> list[bytes]:
    """Return the distinct words of a dictionary-encoded column of an operations table.

    `codes_of` gives the index into this list for each row.
    """
    column = table[name].chunk(0)
    values: list[bytes] = column.dictionary.to_pylist()
    return values


def codes_of(table: Any, name: str) -> Any:
    """Return an Arrow array with each row's index into `values_of`, for a dictionary-encoded column."""
    return table[name].chunk(0).indices
