"""Checks whether the program that reads a variable understands its value.

How values are read: NCCL with strtoll, which takes the leading digits, or 0 if there are none (NVIDIA/nccl v2.30.7
src/misc/param.cc); torch's ProcessGroupNCCL with `getCvarBool` and `getCvarInt`, which raise (pytorch v2.13.0
torch/csrc/distributed/c10d/Utils.hpp).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from ddx_tools.knowledge.variables import Problem, Variable

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)")
_TORCH_WORDS = frozenset({"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"})
_RAISING = ("TORCH_NCCL_", "TORCH_FR_")
_WORDS = frozenset({"true", "false", "0", "1"})


@dataclass(frozen=True)
class Complaint:
    """A problem with a value: its kind, the reason, and advice."""

    problem: Problem
    why: str
    advice: str


def complaint(variable: Variable, value: str) -> Complaint | None:
    """Return what is wrong with a variable's value; None if its reader understands it as intended."""
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
    return Complaint("bad_format", f"NCCL reads a number: this is read as {digits[0].strip() if digits else 0}", wanted)


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
        return Complaint("out_of_range", f"the valid values are {', '.join(variable.values)}", "one of them")
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
    return f"perhaps {near[0]} is meant" if near else ", ".join(variable.values)


# --- values with a syntax of their own. Each check returns (reason, advice), or None

Check = Callable[[str], tuple[str, str] | None]

_ALGORITHMS = frozenset({"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"})
_PROTOCOLS = frozenset({"ll", "ll128", "simple"})
_FUNCTIONS = frozenset({"broadcast", "reduce", "allgather", "reducescatter", "allreduce", "allgatherv"})
_DEVICE = re.compile(r"-?\d{1,4}|GPU-[0-9a-fA-F-]{1,40}|MIG-[0-9a-zA-Z/-]{1,80}|NoDevFiles", re.I)
_ALLOCATOR_KEYS = frozenset(
    {
        "backend", "expandable_segments", "garbage_collection_threshold", "graph_capture_record_stream_reuse",
        "large_segment_size_mb", "max_non_split_rounding_mb", "max_split_size_mb", "per_process_memory_fraction",
        "pinned_free_catch_all", "pinned_max_cached_size_mb", "pinned_max_power2_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_use_background_threads",
        "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc", "roundup_bypass_threshold_mb", "roundup_power2_divisions",
        "throw_on_cudamalloc_oom", "use_async_allocator",
    }
)  # fmt: skip
"""The keys of torch 1.13 to 2.13: c10/cuda/CUDAAllocatorConfig.h, c10/core/AllocatorConfig.h."""


def _debug_file(value: str) -> tuple[str, str] | None:
    """Checks NCCL_DEBUG_FILE, where only %h and %p are replaced (NVIDIA/nccl v2.30.7 src/debug.cc:212-250)."""
    odd = re.findall(r"%[^hp%]", value)
    if odd:
        why = f"{odd[0]} is not replaced: all processes of a host truncate and write the same file"
        return why, "%h for the host and %p for the process, as in /logs/nccl.%h.%p.log"
    if "%p" not in value and value.lower() not in ("/dev/null", "stdout", "stderr", "/dev/stdout", "/dev/stderr"):
        why = "without %p all processes of a host truncate and write the same file"
        return why, "%h for the host and %p for the process, as in /logs/nccl.%h.%p.log"
    if value.startswith("~"):
        return "~ is not expanded", "the full path"
    return None


def _choices(words: frozenset[str], what: str) -> Check:
    """Return a check for lists like `Ring,Tree` or `^NVLS`, since 2.24 also `allreduce:tree;broadcast:ring`
    (src/graph/tuning.cc parseList)."""

    def check(value: str) -> tuple[str, str] | None:
        for part in value.lower().split(";"):
            function, colon, tokens = part.rpartition(":")
            if colon and any(name.strip() not in _FUNCTIONS for name in function.lstrip("^").split(",")):
                return f"NCCL 2.24 and later reject it: there is no operation {function[:40]!r}", "one of " + _listed(
                    _FUNCTIONS
                )
            for token in tokens.strip().lstrip("^").split(","):
                if token and token not in words:
                    return f"NCCL 2.24 and later reject it: there is no {what} {token[:40]!r}", "of " + _listed(words)
        return None

    return check


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))


def _devices(value: str) -> tuple[str, str] | None:
    odd = [item for item in value.split(",") if not _DEVICE.fullmatch(item.strip())]
    if odd and value.lower() not in ("all", "none", "void"):
        return (
            f"{odd[0][:40]!r} is not a device: CUDA sees only those before it",
            "numbers or UUIDs with commas: 0,1,2,3",
        )
    if value.lower() in ("all", "none", "void"):
        return f"{value!r} is for the container runtime (NVIDIA_VISIBLE_DEVICES); CUDA sees no device", "unset it"
    return None


def _allocator(value: str) -> tuple[str, str] | None:
    for item in re.split(r",(?![^\[]*\])", value):
        key, colon, _ = item.partition(":")
        if not item.strip():
            continue
        if not colon:
            hint = " (with ':', not '=')" if "=" in item else ""
            return f"{item[:60]!r} is not key:value{hint}", "expandable_segments:True"
        near = difflib.get_close_matches(key.strip(), _ALLOCATOR_KEYS, n=1, cutoff=0.8)
        if key.strip() not in _ALLOCATOR_KEYS and near:
            return f"torch has no key {key.strip()[:60]!r} and raises an error", f"{near[0]}:…"
    return None


def _address(value: str) -> tuple[str, str] | None:
    if "://" in value:
        return "a host name or an address is expected, not a URL", "only the name"
    if re.fullmatch(r"[^:\[\]]+:\d{1,5}", value):
        return "the port belongs in MASTER_PORT", "only the name"
    return None


SPECIAL: dict[str, Check] = {
    "NCCL_DEBUG_FILE": _debug_file,
    "NCCL_ALGO": _choices(_ALGORITHMS, "algorithm"),
    "NCCL_PROTO": _choices(_PROTOCOLS, "protocol"),
    "CUDA_VISIBLE_DEVICES": _devices,
    "PYTORCH_CUDA_ALLOC_CONF": _allocator,
    "PYTORCH_ALLOC_CONF": _allocator,
    "MASTER_ADDR": _address,
}
