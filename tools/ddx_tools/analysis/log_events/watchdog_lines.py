"""Parses the prefixes that ProcessGroupNCCL puts before its messages, and says which sizes must agree.

    [rank5]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:2281] [PG ID 2 PG GUID 7(mesh_tp) Rank 1]  failure detected by …
    [rank5]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:1537] [PG 0 Rank 5] Timeout at NCCL work: …
    [E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught …

`[rank5]` is the rank in the job (c10/util/Logging.cpp, since torch 2.2). The other ranks count within the group, as do
those in a desync report. `PG ID` counts the groups of one process; `PG GUID` is the same on all members
(ProcessGroupNCCL.cpp, createLogPrefix, torch 2.4 to 2.13; torch 2.2 and 2.3 have a single number).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d{1,6}) PG GUID (?P<guid>[^\s()\]]{1,80})|(?P<number>[^\s()\]]{1,80}))"
    r" ?(?:\((?P<name>[^()\]]{0,120})\))? Rank (?P<rank>\d{1,6})\]"
)
_JOB_RANK = re.compile(r"\[rank(\d{1,6})\]:")
_MEMBER = re.compile(r"\[Rank (\d{1,6})\]")
_NAMELESS = ("", "undefined", "default_pg")


@dataclass(frozen=True)
class Speaker:
    """The speaker of a ProcessGroupNCCL line: its rank and its group."""

    job_rank: int | None
    """Rank in the job, if a label states it."""
    member: int | None
    """Rank within the group."""
    group: str | None
    """Group identifier; the same on all members."""
    name: str | None
    """The program's name for the group."""
    is_world: bool
    """Whether it is the group of all ranks."""


def speaker(raw: str) -> Speaker:
    """Parse which rank and process group wrote a ProcessGroupNCCL log line.

    `raw`: the whole line, prefixes included. What the line does not state is None in the result.
    """
    label, group, member = _JOB_RANK.search(raw), _GROUP.search(raw), _MEMBER.search(raw)
    own = group["rank"] if group else member[1] if member else None
    key = (group["guid"] or group["number"]) if group else None
    name = group["name"] if group else None
    return Speaker(
        job_rank=int(label[1]) if label else None,
        member=int(own) if own is not None else None,
        group=key,
        name=name if name not in _NAMELESS else None,
        is_world=group is not None and (name == "default_pg" or (group["id"] or key) == "0"),
    )


POINT_TO_POINT = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN")
"""OpTypes whose numbers cannot be compared across ranks: transfers and blocks of them are numbered separately."""

_AGREE = {
    "ALLREDUCE": ("numel_in",),
    "BROADCAST": ("numel_in",),
    "REDUCE": ("numel_in",),
    "_ALLGATHER_BASE": ("numel_in", "numel_out"),
    "_REDUCE_SCATTER_BASE": ("numel_in", "numel_out"),
    # Their lists may be ragged: each rank contributes or receives its own size; the sum is the same for all.
    "ALLGATHER": ("numel_out",),
    "REDUCE_SCATTER": ("numel_in",),
}


def sizes_to_agree_on(op_type: str, numbers: dict[str, int | None]) -> str | None:
    """The element counts that must agree on all ranks, as `262144` or `4 -> 16`; None if none must, or unknown."""
    wanted = [numbers[name] for name in _AGREE.get(op_type, ())]
    return " -> ".join(map(str, wanted)) if wanted and None not in wanted else None
