"""NCCL's names and numbers translated to the words that other sources use (nccl.h of 2.18 to 2.30)."""

from __future__ import annotations

import re

_DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)
_REDUCTIONS = ("sum", "product", "max", "min", "average", "a reduction of the program's own")
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def operation_name(name: str) -> str:
    """Convert NCCL's operation name to torch's: `AllReduce` to `all_reduce`, `AlltoAll` to `all_to_all`."""
    return "all_to_all" if name.lower() == "alltoall" else _WORD.sub("_", name).lower()


def dtype_name(number: int) -> str:
    """The data type with an NCCL number: `float32` for 7."""
    return _DTYPES[number] if 0 <= number < len(_DTYPES) else f"data type {number}"


def described(name: str, reduction: int) -> str:
    """An operation with its reduction, unless that is a sum: `all_reduce`, `all_reduce (max)`."""
    known = _REDUCTIONS[reduction] if 0 < reduction < len(_REDUCTIONS) else ""
    return f"{operation_name(name)} ({known})" if known else operation_name(name)
