"""Operations as a script plays them, and their sizes, out of the names and shapes of flight records and stacks."""

from __future__ import annotations

import json
import math

from ddx_tools.analysis.collectives.records.records import Entry
from ddx_tools.repro.model import NEW_GROUP

TRANSFERS = ("send", "recv")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
KNOWN = {"all_reduce", "all_gather", "reduce_scatter", *_ROOTED, "all_to_all", "barrier", *TRANSFERS, NEW_GROUP}
UNRECORDED = {*TRANSFERS, NEW_GROUP}
"""What Gloo leaves out of its records."""
_NAMES = {
    "allreduce": "all_reduce",
    "gradient_reduction": "all_reduce",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "isend": "send",
    "irecv": "recv",
}
_BY_OUTPUT = ("reduce_scatter", "scatter")
DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def op_of(name: str) -> str:
    """The operation behind the names that its forms have."""
    plain = name.lower().lstrip("_")
    for suffix in ("_coalesced", "_into_tensor", "_tensor", "_single", "_base"):
        plain = plain.removesuffix(suffix)
    return _NAMES.get(plain, plain)


def count_of(entry: Entry, op: str, size: int) -> int:
    """The elements of a call as `Call.elements` counts them; `size`: of the group."""
    if op in _BY_OUTPUT:
        return _elements(entry.output_sizes) or max(1, _elements(entry.input_sizes) // size)
    brought = _elements(entry.input_sizes) or _elements(entry.output_sizes)
    return max(1, brought // size) if op == "all_to_all" else max(1, brought)


def splits_of(entry: Entry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements to and from each member; empty if they were not recorded."""
    found = []
    for splits, sizes in ((entry.input_splits, entry.input_sizes), (entry.output_splits, entry.output_sizes)):
        parts, shapes = json.loads(splits or "[]"), json.loads(sizes or "[]")
        if not parts or not shapes:
            return (), ()
        found.append(tuple(int(part) * math.prod(shapes[0][1:]) for part in parts))
    return found[0], found[1]


def _elements(sizes: str | None) -> int:
    return sum(math.prod(shape) for shape in json.loads(sizes or "[]"))
