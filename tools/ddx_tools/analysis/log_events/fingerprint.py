"""Parses the mismatch report of TORCH_DISTRIBUTED_DEBUG=DETAIL (torch 1.9 to 2.15, ProcessGroupWrapper.cpp).

    Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(
    SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float, TensorDeviceTypes=…), but Rank 2
    is running collective: CollectiveFingerPrint(…).Collectives differ in the following aspects:   Op type: …

The reporting rank is right about itself. For its peer it may decode a wrong operation if one of the two has no
tensor or two tensors (barrier, reduce_scatter): measured on torch 2.13.

Up to torch 1.12 a rank reports only itself ("Rank 0 is running inconsistent collective: CollectiveFingerPrint(…)").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ddx_tools.knowledge.known_messages import Signature
from ddx_tools.model.quantities import size_bytes

_HEAD = re.compile(r"Rank (\d{1,6}) is running (?:inconsistent )?collective: CollectiveFingerPrint\(")
_FIELDS = {
    "seq": re.compile(r"SequenceNumber=(\d{1,18})"),
    "operation": re.compile(r"OpType=(\w{1,60})"),
    "shape": re.compile(r"TensorShape=\[([^\]]{0,2000})\]"),
    "dtype": re.compile(r"TensorDtypes=([\w, ]{0,400}), TensorDevice"),
}
_START = "Detected mismatch between collectives on ranks"
_ASPECTS = "Collectives differ in the following aspects:"


@dataclass(frozen=True)
class Fingerprint:
    """The collective that one rank was running."""

    rank: int
    operation: str
    """Lower case, with torch's name if known: `all_reduce`, `broadcast`, `barrier`."""
    seq: int | None
    shape: str | None
    dtype: str | None


@dataclass(frozen=True)
class MismatchReport:
    """One rank's mismatch report: its own call, the first peer with a different call, and how they differ."""

    own: Fingerprint
    peer: Fingerprint | None
    """None if it reports only itself."""
    aspects: frozenset[str]
    """A subset of `operation`, `shape` and `dtype`; empty without a peer."""


def parse_mismatch(text: str) -> MismatchReport | None:
    """Parse the report in a message; None if there is none, or it is cut off before a reported operation."""
    start = text.find(_START)
    if start < 0:
        return None
    text, _, aspects = text[start : start + 16_000].partition(_ASPECTS)
    heads = list(_HEAD.finditer(text))[:2]
    if not heads or (len(heads) < 2 and "inconsistent" not in heads[0][0]):
        return None
    ends = [*(head.start() for head in heads[1:]), len(text)]
    own, *peers = [_fingerprint(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    if own is None or None in peers:
        return None
    peer = peers[0] if peers else None
    return MismatchReport(own, peer, _aspects(aspects, own, peer) if peer else frozenset())


def _fingerprint(head: re.Match[str], body: str) -> Fingerprint | None:
    found = {name: pattern.search(body) for name, pattern in _FIELDS.items()}
    operation = found["operation"]
    if operation is None:
        return None
    seq, shape, dtype = found["seq"], found["shape"], found["dtype"]
    return Fingerprint(
        int(head[1]),
        operation_name(operation[1]),
        int(seq[1]) if seq else None,
        f"[{shape[1]}]" if shape else None,
        dtype[1] if dtype else None,
    )


def _aspects(text: str, own: Fingerprint, peer: Fingerprint) -> frozenset[str]:
    named = {
        name for name, words in (("operation", "Op type:"), ("shape", "shapes:"), ("dtype", "dtypes:")) if words in text
    }
    if not named:
        named = {name for name in ("operation", "shape", "dtype") if getattr(own, name) != getattr(peer, name)}
    return frozenset(named)


_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
}


def operation_name(op_type: str) -> str:
    """torch.distributed's name for a C++ OpType (torch/csrc/distributed/c10d/Types.hpp, `opTypeToString`)."""
    return _NAMES.get(op_type, op_type.lower())


# --- the contents of a known message as values: numbers as numbers, sizes in bytes, lists as lists

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})$")
_DECIMAL = re.compile(r"-?\d{1,15}\.\d{1,9}$")
_LIST_LIMIT = 64


def message_values(known: Signature, groups: dict[str, str]) -> dict[str, Any]:
    """Finding attributes from a signature match: the signature's constants, and the match's groups by name.

    Texts in `values` are replaced by what they stand for, `*_bytes` become sizes ("5.50 GiB" is 5,905,580,032), `lists`
    are split at commas and spaces, digits become numbers unless they are in `texts`; anything else stays text.
    Unreadable values are left out.
    """
    values: dict[str, Any] = dict(known.attributes)
    for name, text in groups.items():
        number = str if name in known.texts else _number
        if name in known.values:
            values[name] = known.values[name].get(text.strip())
        elif name in known.lists:
            items = [item.strip("'\"") for item in re.split(r"[,\s]+", text)]
            values[name] = list(dict.fromkeys(number(item) for item in items if item))[:_LIST_LIMIT]
        elif name.endswith("_bytes"):
            values[name] = size_bytes(text)
        else:
            values[name] = number(text.strip())
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _number(text: str) -> int | float | str:
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _DECIMAL.match(text) else text
