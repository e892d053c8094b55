"""What the members of a group must agree on in one collective, and what may legitimately differ.

From the contracts of torch.distributed: the root of a gather alone lists outputs, the root of a scatter alone
lists inputs, the splits of an all_to_all differ by rank, a barrier's tensor is an implementation detail.
"""

from __future__ import annotations

import json
import math
from functools import cache

from ddx_tools.alignment.records import Entry

_BY_INPUT = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "allgather",
    "_all_gather_base",
    "gather",
    "reduce_scatter",
    "_reduce_scatter_base",
)
_BY_OUTPUT = ("scatter",)
_TYPES_ONLY = ("all_to_all", "alltoall", "all_to_all_base", "alltoall_base")

_COMPLETES_TOGETHER = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "barrier",
)


def sizes_to_agree_on(entry: Entry) -> str | None:
    """The sizes that all members must share, as elements per tensor; None if the operation asks for none.

    Shapes of equal size are equal here: all backends move elements, not dimensions.
    """
    op = _plain(entry.op)
    if op in _BY_INPUT:
        return _elements(entry.input_sizes)
    return _elements(entry.output_sizes) if op in _BY_OUTPUT else None


def dtypes_to_agree_on(entry: Entry) -> str | None:
    """The data types that all members must share; None if the operation asks for none or none is recorded."""
    op = _plain(entry.op)
    if op in _BY_INPUT:
        dtypes = entry.input_dtypes
    elif op in _BY_OUTPUT:
        dtypes = entry.output_dtypes
    elif op in _TYPES_ONLY:
        dtypes = _distinct(entry.input_dtypes)
    else:
        return None
    return None if dtypes in (None, "[]") else dtypes


def completes_together(op: str) -> bool:
    """Whether nobody can finish it before everybody entered (unlike a broadcast at its source)."""
    return _plain(op) in _COMPLETES_TOGETHER


@cache
def _plain(op: str) -> str:
    return op.removesuffix("_coalesced").removesuffix("_into_tensor").removesuffix("_tensor")


@cache
def _elements(sizes: str | None) -> str | None:
    if sizes is None:
        return None
    return json.dumps([math.prod(shape) for shape in json.loads(sizes)])


@cache
def _distinct(dtypes: str | None) -> str | None:
    return None if dtypes is None else json.dumps(sorted(set(json.loads(dtypes))))
