"""Findings about sends and receives: counts of the two ends that do not agree, once the job gave up.

While a job runs, one end is always ahead of the other. So counts are held against each other only where a process
aborted the communicator, which the watchdog of torch does when it gives up waiting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ddx_tools.analysis.collectives import raising
from ddx_tools.analysis.collectives.raising import Shown, Where
from ddx_tools.model import Evidence, Finding, Severity
from ddx_tools.nccl.operation_findings import Enqueued, op_evidence
from ddx_tools.nccl.view import Case

_MOST_FINDINGS = 8
_BASIS = "nccl_log"


def p2p_findings(case: Case, enqueued: list[Enqueued]) -> list[Finding]:
    """One for each circle of ranks that wait for each other, or for each pair whose ends do not agree."""
    findings: list[Finding] = []
    for one in enqueued:
        aborted = any((row["ended"] or "").startswith("Abort") for row in one.streams.values())
        if one.comparable or not aborted or any(row["gap"] or row["first_op"] for row in one.streams.values()):
            continue
        unmatched = _unmatched(one)
        circle = _circle(one, unmatched)
        if circle:
            findings.append(_circular(case, one, circle))
        else:
            findings += [_lonely(case, one, *each) for each in unmatched[:_MOST_FINDINGS]]
    return findings[:_MOST_FINDINGS]


Lonely = tuple[str, int, int, int]
"""(Send or Recv, the rank that has more, its peer, how many more)"""


def _unmatched(one: Enqueued) -> list[Lonely]:
    counts = {rank: json.loads(row["peers"]) for rank, row in one.streams.items()}
    found: list[Lonely] = []
    for rank in sorted(counts):
        for peer in sorted(counts):
            sent = counts[rank].get(f"Send {peer}", 0)
            received = counts[peer].get(f"Recv {rank}", 0)
            if sent > received:
                found.append(("Send", rank, peer, sent - received))
            elif received > sent:
                found.append(("Recv", peer, rank, received - sent))
    return found


def _circle(one: Enqueued, unmatched: list[Lonely]) -> list[int]:
    """Ranks each of whose last operations is a lone one to the next of them."""
    towards: dict[int, int] = {}
    for name, rank, peer, _ in unmatched:
        last = one.ops.get(rank, [])[-1:]
        if last and (last[0]["name"], last[0]["root"]) == (name, peer):
            towards[rank] = peer
    for start in towards:
        path = [start]
        while (following := towards.get(path[-1])) is not None and following not in path:
            path.append(following)
        if following is not None:
            return path[path.index(following) :]
    return []


def _circular(case: Case, one: Enqueued, circle: list[int]) -> Finding:
    last = {rank: one.ops[rank][-1] for rank in circle}
    return raising.finding(
        "p2p.circular_wait",
        Severity.FAILURE,
        case.globally(one.communicator, circle),
        f"{case.who(one.communicator, circle).capitalize()} each enqueued an operation with the next of them "
        f"that has no counterpart, and nothing after it ({one.communicator.label}).",
        Where(_BASIS, one.communicator.label, operation=last[circle[0]]["name"].lower()),
        Shown(_evidence(one, circle)),
        peers={str(rank): row["root"] for rank, row in last.items()},
    )


def _lonely(case: Case, one: Enqueued, name: str, rank: int, peer: int, more: int) -> Finding:
    other = "receives from" if name == "Send" else "sends to"
    said = "sends to" if name == "Send" else "receives from"
    return raising.finding(
        "p2p.unmatched",
        Severity.FAILURE,
        case.globally(one.communicator, [rank]),
        f"{case.who(one.communicator, [rank]).capitalize()} enqueued {more} more {said} "
        f"{case.who(one.communicator, [peer])} than that enqueued {other} it ({one.communicator.label}).",
        Where(_BASIS, one.communicator.label, operation=name.lower()),
        Shown(_evidence(one, [rank, peer])),
        peers={str(rank): peer},
    )


def _evidence(one: Enqueued, ranks: list[int]) -> list[Evidence]:
    return list(_last_ops(one, ranks))[:8]


def _last_ops(one: Enqueued, ranks: list[int]) -> Iterator[Evidence]:
    for rank in ranks:
        if rows := one.ops.get(rank):
            yield op_evidence(rows[-1])
