"""Desync reports: one rank's view of where all members of its group are, as reports of each of them.

With TORCH_NCCL_DESYNC_DEBUG=1 every rank writes to the store what it started and finished last; the rank that times out
prints all of it (torch/csrc/distributed/c10d/TraceUtils.h, torch 1.13 to 2.13):

    - [1] Timeout at collective: ALLREDUCE, #2
    - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
        [0] finished collective #1, but didn't join collective #2 (count from 1)
    - Snapshot of ranks' latest states:
      #2 started ranks:
        [1, 2] started ALLREDUCE

"Started" is what the device began, where that is recorded: a rank may have called more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ddx_tools.logs.event import Event
from ddx_tools.logs.watchdog_reports import Report

_HEAD = "torch_desync_timeout"
_FAR = 200
"""Lines between the head and the last line of a report with labels."""
_WHOLE = 16
"""So many reports are read whole at either end: all members print the same, each of all members."""


@dataclass
class _Block:
    """One desync report: its head and what stands below it."""

    head: Event
    rest: list[Event] = field(default_factory=list)

    def holds(self, event: Event) -> bool:
        """Whether a line belongs to it: the next lines if they bear no label, else those of the same process."""
        last = (self.rest or [self.head])[-1]
        stream = event.details.get("stream")
        distance = event.row["source_line"] - last.row["source_line"]
        if event.row["source"] != self.head.row["source"]:
            return False
        if not stream:
            return bool(distance <= 3)
        return bool(stream == self.head.details.get("stream") and distance <= _FAR)


def desync_reports(events: list[Event], watchdog: list[Report]) -> list[Report]:
    """What desync reports say of each member; the group is that of the timeout which they explain."""
    blocks = _blocks(events)
    for block in blocks[_WHOLE:-_WHOLE]:
        block.rest.clear()
    return [report for block in blocks for report in _reports(block, watchdog)]


def _blocks(events: list[Event]) -> list[_Block]:
    blocks: list[_Block] = []
    for event in events:
        code = event.row["code"] or ""
        if code == _HEAD:
            blocks.append(_Block(event))
        elif code.startswith("torch_desync_"):
            owner = next((block for block in reversed(blocks[-64:]) if block.holds(event)), None)
            if owner:
                owner.rest.append(event)
    return blocks


def _reports(block: _Block, watchdog: list[Report]) -> Iterator[Report]:
    member, seq = int(block.head.details["group_rank"]), int(block.head.details["seq"])
    at_hand = (r for r in watchdog if r.timed_out and (r.seq, r.event.attempt) == (seq, block.head.attempt))
    groups = {(r.group, r.name, r.is_world) for r in at_hand if member in (r.member, r.rank)}
    group, name, is_world = next(iter(groups)) if len(groups) == 1 else (None, None, False)
    ranks = _job_ranks(group, is_world, watchdog)
    told = Report(event=block.head, rank=ranks(member), member=member, group=group, name=name, is_world=is_world)
    yield replace(told, op_type=block.head.details["operation"], seq=seq)
    number: int | None = None
    for event in block.rest:
        details, code = event.details, event.row["code"]
        number = int(details["seq"]) if code == "torch_desync_numbered" else number
        for each in _listed(details.get("ranks", "")):
            at = replace(told, event=event, rank=ranks(each), member=each)
            if code == "torch_desync_never_joined":
                yield replace(at, last_enqueued=0, last_completed=0)
            elif code == "torch_desync_lagging" and details.get("last"):
                yield replace(at, last_enqueued=int(details["last"]), last_completed=int(details["last"]))
            elif code == "torch_desync_state" and number is not None and details["state"] == "finished":
                yield replace(at, last_enqueued=number, last_completed=number)
            elif code == "torch_desync_state" and number is not None:
                yield replace(at, op_type=details["operation"], seq=number)


def _job_ranks(group: str | None, is_world: bool, watchdog: list[Report]) -> Callable[[int], int | None]:
    known = {r.member: r.rank for r in watchdog if r.group == group and None not in (r.member, r.rank)}
    shifted = any(member != rank for member, rank in known.items())

    def job_rank(member: int) -> int | None:
        if group is None or is_world:
            return known.get(member) if shifted else member
        return known.get(member)

    return job_rank


def _listed(ranks: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,6}", ranks)[:4096]]
