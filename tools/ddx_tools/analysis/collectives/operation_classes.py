"""The kind of operation that a recorded name stands for, derived from the parts of the name.

Backends and versions write one operation in many ways: `all_gather`, `_all_gather_base`, `ALLGATHER_coalesced`,
`all_gather_into_tensor_coalesced` (torch 2.0 to 2.13, ProcessGroupNCCL and ProcessGroupGloo), `all_gather_single`,
`all_gather_v` (c10d's recorder of nccl2; TorchComms, hooks/common/OpNameHelper.hpp). Two calls are of one *kind* if
they do the same to their tensors; only their names say whether they are the same *call*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "transfer",
    "set_up",
    "coalesced",
    "unknown",
]
SizesAgree = Literal["input", "output", "nowhere"]

_JOINED = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_ENDINGS = re.compile(r"(?:_(?:coalesced|into_tensor|tensor|single|base|v|oop|object|list|barrier))+$")
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("send", "recv", "isend", "irecv", "send_recv", "recvanysource"), "transfer"),
    **dict.fromkeys(("split", "new_window", "finalize"), "set_up"),
    **dict.fromkeys(("coalesced", "batch_op_issue"), "coalesced"),
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "sparse_all_reduce": "all_reduce",
}
_BY_INPUT: frozenset[Kind] = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"},
)
_TOGETHER: frozenset[Kind] = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})


@dataclass(frozen=True, slots=True)
class OperationClass:
    """Properties of a kind of operation that hold under every name it is recorded by."""

    kind: Kind
    sizes_agree: SizesAgree
    """Where all members of the group must pass equal sizes."""
    dtypes_agree: SizesAgree
    """Where all members must pass equal data types; for an exchange, in what they send."""
    completes_together: bool
    """No member can finish it before all have entered it (unlike a broadcast at its source)."""
    rooted: bool
    """One member, the root, has a different role from the others."""

    @property
    def exchange(self) -> bool:
        """Whether members send each other parts of different sizes, so that one with nothing to receive ends early."""
        return self.kind == "all_to_all"

    @property
    def hides_root(self) -> bool:
        """Whether members may hang in it because they disagree on its root, which no record shows."""
        return self.kind in ("broadcast", "reduce")


@cache
def class_of(name: str) -> OperationClass:
    """The class of a recorded operation name, with or without the backend's prefix; `unknown` if no rule matches."""
    plain = name.rpartition(":")[2].strip().partition(" ")[0].lower().strip("_")
    stem = _joined(_ENDINGS.sub("", _joined(plain)))
    kind = _KINDS.get(stem, "unknown")
    uneven = bool(re.search(r"_v(?:_|$)", plain)) and kind in ("all_gather", "all_to_all", "gather", "scatter")
    sizes: SizesAgree = "input" if kind in _BY_INPUT else "output" if kind == "scatter" else "nowhere"
    if uneven or stem.startswith("sparse"):
        sizes = "nowhere"
    dtypes: SizesAgree = "input" if kind in _BY_INPUT or kind == "all_to_all" else sizes
    return OperationClass(
        kind,
        sizes,
        "output" if kind == "scatter" else dtypes,
        kind in _TOGETHER,
        kind in ("broadcast", "gather", "scatter", "reduce"),
    )


def _joined(plain: str) -> str:
    for joined, parted in _JOINED.items():
        if plain == joined or plain.startswith(f"{joined}_"):
            return parted + plain[len(joined) :]
    return plain
