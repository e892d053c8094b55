"""How ranks ended: raised, killed, exited, aborted; and which of these ends stands on its own.

An end is independent if nothing says that it followed from another rank's: no lost connection, no timeout, no
signal of the launcher, no restart behind an earlier failure. Times are not compared: clocks of hosts differ,
and torchrun's "first observed" has a resolution of a second.
"""

from __future__ import annotations

from collections import defaultdict

from ddx_tools.logs.case import Case
from ddx_tools.logs.ended import ended_finding, ends
from ddx_tools.logs.event import Event
from ddx_tools.logs.identity import Enclosing
from ddx_tools.logs.raised import raised_finding, raises
from ddx_tools.model import Finding, Severity


def failure_findings(events: list[Event], codes: dict[int, int]) -> list[Finding]:
    """Findings about the ends of ranks. `codes`: exit code by rank, as far as known."""
    aborted = _aborts(events)
    raised = raises(events)
    ended = ends(events, codes, raised, aborted)
    _judge_restarts([*aborted, *raised, *ended])
    findings = [_aborted_finding(case, events, codes) for case in aborted]
    findings += [raised_finding(case, codes) for case in raised]
    findings += [ended_finding(case, events) for case in ended]
    return findings


def _judge_restarts(cases: list[Case]) -> None:
    """What fails behind a restart may be the restart's fault; what failed before it cannot be."""
    first = min((min(case.attempts) for case in cases if case.independent), default=0)
    for case in cases:
        if case.independent and min(case.attempts) > first:
            case.independent, case.reason = False, "after a restart"


def _aborts(events: list[Event]) -> list[Case]:
    cases: dict[tuple[int, ...], Case] = defaultdict(Case)
    for event in events:
        if event.row["code"] == "gloo_size_mismatch":
            cases[tuple(event.ranks)].add(event, set(event.ranks))
    for case in cases.values():
        case.independent = True
    return list(cases.values())


def _aborted_finding(case: Case, events: list[Event], codes: dict[int, int]) -> Finding:
    details = case.events[0].details
    fatal = [e for e in events if e.kind == "fatal_stack" and set(e.ranks) & case.ranks]
    received, expected = int(details["received_bytes"]), int(details["expected_bytes"])
    enclosing = Enclosing(events).of(case.events[0])
    places = [event.location for event in [*fatal, *([enclosing] if enclosing else [])] if event.location]
    where = f" at {places[0].short()}" if places else ""
    return case.finding(
        "rank.aborted_on_size",
        Severity.FAILURE,
        f"was aborted{where}: {received} bytes came from a peer, {expected} fit.",
        fatal,
        places,
        received_bytes=received,
        expected_bytes=expected,
        exit_codes=case.codes(codes),
        operation=next((event.operation for event in fatal), None),
    )
