"""Whether a value is one that its reader understands.

How values are read: NCCL by strtoll, which takes the digits at the beginning and 0 if there are none
(NVIDIA/nccl v2.30.7 src/misc/param.cc); torch's ProcessGroupNCCL by `getCvarBool` and `getCvarInt`, which raise
(pytorch v2.13.0 torch/csrc/distributed/c10d/Utils.hpp).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ddx_tools.environment.knowledge import Problem, Variable
from ddx_tools.environment.special_values import SPECIAL

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_TORCH_WORDS = frozenset({"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"})
_RAISING = ("TORCH_NCCL_", "TORCH_FR_")
_WORDS = frozenset({"true", "false", "0", "1"})


@dataclass(frozen=True)
class Complaint:
    """What is wrong with a value."""

    problem: Problem
    why: str
    advice: str


def complaint(variable: Variable, value: str) -> Complaint | None:
    """What is wrong with the value of a variable, None if it is understood as it is meant."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return Complaint("bad_format", "the quotes are part of the value", f"{variable.name}={value[1:-1]}")
    if not value.strip():
        return None
    if special := SPECIAL.get(variable.name):
        found = special(value)
        return Complaint("bad_format", *found) if found else None
    if variable.type in ("bool", "flag"):
        return _bool(variable, value)
    if variable.type == "int":
        return _int(variable, value)
    if variable.type == "float" and not re.fullmatch(r"\s*[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\s*", value):
        return Complaint("bad_format", "a number is expected", f"default: {variable.default}")
    if variable.type == "enum":
        return _member(variable, value)
    if variable.type == "list" and variable.values:
        return _members(variable, value)
    return None


def _bool(variable: Variable, value: str) -> Complaint | None:
    if variable.type == "flag" and value.lower() in _WORDS:
        return None
    if variable.owner == "nccl":
        return None if _whole(value) else _as_nccl_reads_it(value, "0 or 1")
    if variable.name.startswith(_RAISING) and value.lower() not in _TORCH_WORDS:
        return Complaint("bad_format", "torch raises an error for any value but 1, 0, true, false, yes, no", "1 or 0")
    return None


def _whole(value: str) -> bool:
    return bool(_NUMBER.fullmatch(value.strip()))


def _as_nccl_reads_it(value: str, wanted: str) -> Complaint:
    digits = _NUMBER.match(value)
    return Complaint("bad_format", f"NCCL reads a number: this counts as {digits[0].strip() if digits else 0}", wanted)


def _int(variable: Variable, value: str) -> Complaint | None:
    found = _NUMBER.match(value)
    if not _whole(value):
        if variable.owner == "nccl":
            return _as_nccl_reads_it(value, "a plain number, without a unit")
        return Complaint("bad_format", "a whole number is expected", "a plain number, without a unit")
    assert found is not None
    digits = found[2]
    number = int(f"{found[1]}{digits[:40]}", 16 if digits[:2].lower() == "0x" else 10)
    low, high = variable.range or (None, None)
    if (low is not None and number < low) or (high is not None and number > high):
        span = f"{low} to {high}" if low is not None and high is not None else f"at least {low}"
        return Complaint("out_of_range", f"the range is {span}. {variable.danger}".strip(), f"{span}, or unset it")
    return None


def _member(variable: Variable, value: str) -> Complaint | None:
    known = {one.lower(): one for one in variable.values}
    if value.lower() in known:
        return None
    if all(one.isdigit() for one in known) and _whole(value):
        return Complaint("out_of_range", f"there are {', '.join(variable.values)}", "one of them")
    return Complaint("bad_format", f"there is no such value: {_choice(variable, value)}", "one of them")


def _members(variable: Variable, value: str) -> Complaint | None:
    known = {one.lower() for one in variable.values}
    wrong = [item for item in value.lstrip("^").split(",") if item.strip().lower() not in known]
    if not wrong:
        return None
    return Complaint(
        "bad_format", f"there is no {wrong[0][:40]!r}: {_choice(variable, wrong[0])}", "only these, with commas"
    )


def _choice(variable: Variable, value: str) -> str:
    near = difflib.get_close_matches(value.upper(), [one.upper() for one in variable.values], n=1)
    return f"{near[0]} is meant?" if near else ", ".join(variable.values)
