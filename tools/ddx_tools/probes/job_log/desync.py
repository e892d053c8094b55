"""Reads desync reports: one rank's view of all members of its group, turned into a report for each member.

With TORCH_NCCL_DESYNC_DEBUG=1, every rank writes the last operation it started and finished to the store; the rank that
times out prints all of it (torch/csrc/distributed/c10d/TraceUtils.h, torch 1.13 to 2.13):

    - [1] Timeout at collective: ALLREDUCE, #2
    - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
        [0] finished collective #1, but didn't join collective #2 (count from 1)
    - Snapshot of ranks' latest states:
      #2 started ranks:
        [1, 2] started ALLREDUCE

"Started" means started by the device, if that is recorded: a rank may have made more calls.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.collectives.participation import GroupMember, GroupParticipation, JobRanks, PendingCall
from ddx_tools.analysis.log_events.known_ranks import Crowd
from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.analysis.log_events.watchdog_lines import POINT_TO_POINT, sizes_to_agree_on
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.job_log.watchdog_reports import WatchdogReport
from ddx_tools.probes.job_log.watchdog_stacks import Whereabouts

_HEAD = "torch_desync_timeout"
_FAR = 200
"""The maximum number of lines between the head and the last line of a report with labels."""
_WHOLE = 16
"""How many reports at each end of the log are read whole: all members print the same report about all members."""


@dataclass
class _Block:
    """One desync report: its head and the lines below it."""

    head: LogEvent
    rest: list[LogEvent] = field(default_factory=list)

    def holds(self, event: LogEvent) -> bool:
        """Return whether a line belongs to the report: the following lines if unlabelled, else those of the same
        process."""
        last = (self.rest or [self.head])[-1]
        stream = event.details.get("stream")
        distance = event.row["source_line"] - last.row["source_line"]
        if event.row["source"] != self.head.row["source"]:
            return False
        if not stream:
            return bool(distance <= 3)
        return bool(stream == self.head.details.get("stream") and distance <= _FAR)


def desync_reports(events: list[LogEvent], watchdog: list[WatchdogReport]) -> list[WatchdogReport]:
    """Return a report for each member in the desync reports; their group is that of the timeout they explain."""
    blocks = _blocks(events)
    for block in blocks[_WHOLE:-_WHOLE]:
        block.rest.clear()
    return [report for block in blocks for report in _reports(block, watchdog)]


def _blocks(events: list[LogEvent]) -> list[_Block]:
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


def _reports(block: _Block, watchdog: list[WatchdogReport]) -> Iterator[WatchdogReport]:
    member, seq = int(block.head.details["group_rank"]), int(block.head.details["seq"])
    at_hand = (r for r in watchdog if r.timed_out and (r.seq, r.event.attempt) == (seq, block.head.attempt))
    groups = {(r.group, r.name, r.is_world) for r in at_hand if member in (r.member, r.rank)}
    group, name, is_world = next(iter(groups)) if len(groups) == 1 else (None, None, False)
    ranks = _job_ranks(group, is_world, watchdog)
    told = WatchdogReport(
        event=block.head, rank=ranks(member), member=member, group=group, name=name, is_world=is_world
    )
    yield replace(told, op_type=block.head.details["operation"], seq=seq)
    number: int | None = None
    for event in block.rest:
        details, code = event.details, event.row["code"]
        number = int(details["seq"]) if code == "torch_desync_numbered" else number
        for each in [int(number) for number in re.findall(r"\d{1,6}", details.get("ranks", ""))[:4096]]:
            at = replace(told, event=event, rank=ranks(each), member=each)
            if code == "torch_desync_never_joined":
                yield replace(at, last_enqueued=0, last_completed=0)
            elif code == "torch_desync_lagging" and details.get("last"):
                yield replace(at, last_enqueued=int(details["last"]), last_completed=int(details["last"]))
            elif code == "torch_desync_state" and number is not None and details["state"] == "finished":
                yield replace(at, last_enqueued=number, last_completed=number)
            elif code == "torch_desync_state" and number is not None:
                yield replace(at, op_type=details["operation"], seq=number)


def _job_ranks(group: str | None, is_world: bool, watchdog: list[WatchdogReport]) -> Callable[[int], int | None]:
    known = {r.member: r.rank for r in watchdog if r.group == group and None not in (r.member, r.rank)}
    shifted = any(member != rank for member, rank in known.items())

    def job_rank(member: int) -> int | None:
        if group is None or is_world:
            return known.get(member) if shifted else member
        return known.get(member)

    return job_rank


# --- watchdog and desync reports as a table: per group and rank, what the rank waits in and how far it got


def watchdog_parties(
    reports: list[WatchdogReport], job: JobRanks, whereabouts: Whereabouts
) -> list[GroupParticipation]:
    """Return the participation in all groups whose ranks count the same operations; reports without a known rank are
    left out."""
    by_group = gathered(((report.event.attempt, report.group), report) for report in reports if report.rank is not None)
    return [
        GroupParticipation(
            "log",
            _members(told),
            job,
            label=next((report.label for report in told if report.label), None),
            is_world=any(report.is_world for report in told),
            named=group is not None,
            attempts=[attempt] if attempt else [],
            places=partial(whereabouts.places, attempt=attempt),
            contexts=partial(_contexts, whereabouts, attempt),
        )
        for (attempt, group), told in by_group.items()
        if _is_comparable(group, told)
    ]


def _contexts(whereabouts: Whereabouts, attempt: int, ranks: Sequence[int], peers: Collection[int]) -> dict[str, Any]:
    if (own := whereabouts.own(ranks, peers, attempt)) is None:
        return {}
    enclosing = sorted(own.contexts)
    return {"own_contexts": enclosing, "contexts": enclosing, "user_functions": list(own.user_functions)}


def _members(reports: list[WatchdogReport]) -> dict[int, GroupMember]:
    members: dict[int, GroupMember] = {}
    for report in reports:
        if report.rank is None:
            continue
        member = members.setdefault(report.rank, GroupMember(report.rank))
        member.evidence.append(report.event.evidence)
        if host := report.event.row["host"]:
            member.hosts.add(host)
        if report.timed_out:
            first = member.call
            # The watchdog finds the oldest operation first, and repeats it when it ends the process; older ones go on.
            if first is None or (report.seq is not None and first.seq is not None and report.seq < first.seq):
                member.call = _call(report)
        if report.last_enqueued is not None and report.last_enqueued >= (member.enqueued or -1):
            member.enqueued, member.completed = report.last_enqueued, report.last_completed
    return dict(sorted(members.items()))


def _call(report: WatchdogReport) -> PendingCall:
    size = sizes_to_agree_on(report.op_type or "", report.sizes)
    return PendingCall(
        {"operation": report.operation or "", **({"shape": size} if size is not None else {})},
        report.event.evidence,
        report.seq,
        None if report.elapsed_ms is None else report.elapsed_ms / 1000,
        None if report.timeout_ms is None else report.timeout_ms / 1000,
    )


def _is_comparable(group: str | None, reports: list[WatchdogReport]) -> bool:
    if any(report.op_type in POINT_TO_POINT for report in reports):
        return False
    if group is not None:
        return True
    # No line names the group. If member numbers differ from ranks, or a rank's number falls, there are several groups.
    if any(None not in (report.member, report.rank) and report.member != report.rank for report in reports):
        return False
    seen: dict[int | None, int] = {}
    for report in reports:
        if report.timed_out and report.seq is not None:
            if report.seq < seen.get(report.rank, report.seq) and not _repeats(report, reports):
                return False
            seen[report.rank] = report.seq
    return True


def _repeats(report: WatchdogReport, reports: list[WatchdogReport]) -> bool:
    same = [each for each in reports if (each.rank, each.seq) == (report.rank, report.seq)]
    return same[0] is not report


# --- watchdog reports about point-to-point operations. They name no peer, so only two patterns are proof

_EVIDENCE_LIMIT = 8
_HALVES = ("SEND", "RECV")
_BLOCKS = {None, "COALESCED"}
"""Operations that may contain either half: several operations under one name, or an unknown one."""


def transfer_findings(reports: list[WatchdogReport], crowd: Crowd, whereabouts: Whereabouts) -> list[Finding]:
    """Return findings, per attempt, if all ranks wait in a send, or some in one half of a transfer and all others in
    collectives.

    A send waits for its receiver. If every rank of the job is blocked in one, each waits for a rank that is itself
    blocked in a send: there is a cycle, whatever the pairs are. If no rank is in the other half, and all ranks outside
    transfers are blocked in a collective, all waiting leads to those: they skipped their half, or have it after the
    collective.
    """
    oldest: dict[int, dict[int, WatchdogReport]] = defaultdict(dict)
    for report in reports:
        if report.timed_out and report.rank is not None:
            before = oldest[report.event.attempt].setdefault(report.rank, report)
            if (report.seq or 0) < (before.seq or 0):
                oldest[report.event.attempt][report.rank] = report
    return [
        finding
        for attempt, waiting in sorted(oldest.items())
        if len(waiting) > 1 and waiting.keys() >= crowd.everybody
        for finding in _of_attempt(attempt, waiting, crowd, whereabouts)
    ]


def _is_one_collective(reports: list[WatchdogReport]) -> bool:
    """Whether these ranks can all be in one collective of all ranks.

    Ranks of a smaller group, or in different collectives, wait for each other. A rank that receives from them is a
    victim.
    """
    calls = {(report.group, report.op_type, report.seq) for report in reports}
    return len(calls) == 1 and all(report.member in (None, report.rank) for report in reports)


def _of_attempt(
    attempt: int, waiting: dict[int, WatchdogReport], crowd: Crowd, whereabouts: Whereabouts
) -> Iterator[Finding]:
    """The finding about what all ranks wait in, if it is one of the two patterns."""
    halves = {report.op_type for report in waiting.values() if report.op_type in _HALVES}
    elsewhere = [rank for rank, report in sorted(waiting.items()) if report.op_type not in _HALVES]
    held = sorted(waiting.keys() - set(elsewhere))
    if len(halves) != 1 or _BLOCKS & {waiting[rank].op_type for rank in elsewhere}:
        return
    half = str(halves.pop())
    if elsewhere and not _is_one_collective([waiting[rank] for rank in elsewhere]):
        return
    if elsewhere:
        code, ranks = "p2p.unmatched", elsewhere
        summary = (
            f"{rank_list(held).capitalize()} wait in a {half.lower()}, but of the ranks that the log mentions none is "
            f"in a {'recv' if half == 'SEND' else 'send'}: {rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} in "
            "a collective."
        )
    elif half == "SEND":
        code, ranks = "p2p.circular_wait", held
        summary = (
            f"All ranks that the log mentions ({rank_list(ranks)}) are blocked in a send: each waits for a rank that "
            "is itself sending, not receiving."
        )
    else:
        return
    told = [waiting[rank] for rank in dict.fromkeys([*ranks, *held])]
    hosts = {report.event.row["host"] for report in told if report.rank in ranks and report.event.row["host"]}
    lines = [report.event.evidence for report in told[:_EVIDENCE_LIMIT]]
    # A log with only the first stages of a longer pipeline looks the same as one with all stages.
    yield raising.finding(
        code,
        Severity.FAILURE if crowd.complete else Severity.WARNING,
        ranks,
        summary,
        Where("log", operation=half.lower(), attempts=[attempt] if attempt else []),
        FindingPlace(lines, whereabouts.places(ranks, attempt), hosts),
        complete=crowd.complete,
    )
