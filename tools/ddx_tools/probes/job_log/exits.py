"""Ends without an exception: signals, exit codes, fatal errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from ddx_tools.analysis.log_events.attribution import distinct_places
from ddx_tools.analysis.log_events.log_event import LogEvent
from ddx_tools.model.diagnosis import Finding, Location, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.model.signals import signal_name, signal_number
from ddx_tools.probes.job_log.end_reports import EndReports

_NOTICE_S = 29.0
"""torchrun's grace period, minus the fraction of a second that its times omit."""
_REAPED_S = 2.0


def ends(
    events: list[LogEvent], codes: dict[int, int], raised: list[EndReports], aborted: list[EndReports]
) -> list[EndReports]:
    """Return how processes ended whose end no reported exception or abort explains.

    For example by a signal, an exit code or a fatal error of the interpreter. `codes` maps ranks to exit codes;
    `raised` and `aborted` are the ends already explained. Equal ends of several ranks are one entry.
    """
    explained = {rank for case in aborted for rank in case.ranks}
    raising = {rank for case in raised for rank in case.ranks}
    following = {rank for case in raised if case.independent is False for rank in case.ranks}
    stopped = {event.row["pid"]: event.row["code"] for event in events if event.details.get("event") == "stopped"}
    cases: dict[tuple[str, Any], EndReports] = defaultdict(EndReports)
    # A program may catch its own sys.exit, so the way its process ended has priority.
    told = [event for event in events if not event.is_note and event.row["exit_code"] is not None]
    ended = {rank for event in told if event.row["exit_code"] >= 0 for rank in event.ranks}
    for event in events:
        code = event.row["exit_code"]
        if code is None or (event.is_note and set(event.ranks) <= ended):
            continue
        # A raising rank's exit code adds nothing; an unknown rank's may belong to any rank that raised. One that lost
        # its connection to a peer is aborted by its own watchdog.
        ranks = set(event.ranks) - explained - (raising if code > 0 else following if code == -6 else set())
        if not ranks and (event.ranks or (code > 0 and raised)):
            continue
        by_launcher = code < 0 and stopped.get(event.row["pid"]) == signal_name(-code)
        cases["exit" if code >= 0 else "signal", (code, by_launcher)].add(event, ranks)
    for event in events:
        if event.kind == "fatal_stack" and not set(event.ranks) & (codes.keys() | explained):
            cases["fatal", event.row["text"]].add(event, set(event.ranks))
        silent = set(event.ranks) - codes.keys() - raising - explained
        wanted = event.row["exit_code"]
        if silent and event.is_note and wanted is None and not event.details.get("failed"):
            cases["note", None].add(event, silent)
    found = list(cases.values())
    for (kind, what), case in cases.items():
        _judge_end(case, kind, what, found, events)
        if kind == "exit" and _called_exit(_notes(case, events)):
            case.independent = True
    if left := _left_without_failing(events, codes, raising):
        found.append(left)
    return found


def _judge_end(case: EndReports, kind: str, what: Any, all_ends: list[EndReports], events: list[LogEvent]) -> None:
    if kind == "note":
        return
    if kind == "exit":
        # Python's own code for an uncaught exception; without a traceback it may mean anything.
        case.independent = None if what[0] == 1 else True
        return
    case.independent = True
    if kind == "fatal":  # of its launcher nothing is known
        signal = signal_number(case.events[0].row["code"] or "")
        code, by_launcher = -(signal or 0), False
    else:
        code, by_launcher = what
    others = any(other is not case for other in all_ends) or any(event.exception for event in events)
    if by_launcher or (code == -15 and others) or (code == -9 and _outlived_its_notice(case, events)):
        case.independent, case.reason = False, "stopped by the launcher"
    elif code == -15 and len(case.ranks) > 1:
        case.independent, case.reason = None, "somebody sent it to all of them"
    elif code == -6 and (watchdogs := [e for e in events if e.kind == "watchdog"]):
        # A rank's own watchdog also aborts it for a peer's timeout, and its message may be in another file.
        spoke = any(set(e.ranks) & case.ranks for e in watchdogs)
        case.independent, case.reason = (False, "its watchdog ended it") if spoke else (None, "a watchdog acted")
    elif code == -6 and kind == "signal" and _only_reported(case, events):
        # The watchdog of torch aborts a rank for what its peers did, too. Only the rank's own output shows that.
        case.independent, case.reason = None, "none of its own output was given"


def _only_reported(case: EndReports, events: list[LogEvent]) -> bool:
    """Whether nothing that these ranks printed is known: only a log of their launcher without any output of ranks."""
    sources = {event.row["source"] for event in case.events}
    printed = [event for event in events if event.kind not in ("exit", "failure_summary")]
    return not any(event.row["source"] in sources or set(event.ranks) & case.ranks for event in printed)


def _outlived_its_notice(case: EndReports, events: list[LogEvent]) -> bool:
    """Whether torchrun killed the rank, 30 s after asking it to end because another one had failed.

    (torch/distributed/elastic/multiprocessing/api.py, `close`: SIGTERM, then SIGKILL for the rest.) The summary has no
    time for the request; ranks that obeyed it were reaped together with those that did not.
    """
    listed = [
        (event, event.row["time_s"], event.row["exit_code"]) for event in events if event.kind == "failure_summary"
    ]
    timed = [(event, at, code) for event, at, code in listed if at is not None and code is not None]
    own = [at for event, at, _ in timed if any(event is other for other in case.events)]
    if not own or len(own) < len(case.events):
        return False
    stopped = [at for _, at, code in timed if code == -15]
    failed = [at for _, at, code in timed if code not in (-15, -9)]
    return all(
        any(abs(at - end) <= _REAPED_S for at in stopped) and any(at <= end - _NOTICE_S for at in failed) for end in own
    )


def _left_without_failing(events: list[LogEvent], codes: dict[int, int], raising: Collection[int]) -> EndReports | None:
    """Ranks missing from torchrun's list of all ranks with a nonzero exit code: they exited with code 0.

    Only if each process that torchrun stopped is in the list: a rank may also exit with code 0 on SIGTERM. The list
    by itself does not show which ones torchrun stopped: that stands above it, in the same log. If it lacks a rank that
    raised an exception, it is not the whole list.
    """
    reporting = {event.row["source"] for event in events if event.kind != "failure_summary"}
    listed = [event for event in events if event.kind == "failure_summary" and event.ranks]
    if not any(event.row["source"] in reporting for event in listed):
        return None
    stopped = {event.row["pid"] for event in events if event.details.get("event") == "stopped"}
    last = max((event.attempt for event in listed), default=0)
    if last or not listed or not stopped <= {event.row["pid"] for event in listed}:
        return None
    by_node: dict[str, set[int]] = defaultdict(set)
    offset: dict[str, int] = {}
    # A summary may be in several logs.
    told = {(event.details.get("node", ""), event.details.get("number")) for event in listed}
    whole = {node for node, numbers in gathered(told).items() if set(numbers) == {*range(len(numbers))}}
    for event in listed:
        node, local = event.details.get("node", ""), event.details.get("local_rank", 0)
        if node not in whole:
            continue  # an excerpt: some failures of this node were cut off
        by_node[node].add(local)
        offset[node] = event.ranks[0] - local
    gaps = {
        offset[node] + local
        for node, locals_ in by_node.items()
        for local in range(max(locals_))
        if local not in locals_
    } - set(codes)
    if not gaps or not gaps.isdisjoint(raising):
        return None
    return EndReports(listed[:1], gaps, True, "missing from the launcher's list of failed ranks")


def ended_finding(case: EndReports, events: list[LogEvent]) -> Finding:
    """Return the finding about an end without an exception."""
    code = case.events[0].row["exit_code"]
    notes = _notes(case, events)
    # Where its ranks called sys.exit or, failing that, their last collective, according to their exit notes.
    places = _called_exit(notes)
    called = bool(places) or None
    last = distinct_places([place for event in notes for place in event.last_call]) if not places else []
    behind = f" The last collective was called at {last[0].short()}." if last else ""
    if case.reason and case.reason.startswith("missing from"):
        return case.finding(
            "rank.exited",
            Severity.WARNING,
            f"ended with exit code 0 while others failed.{behind}",
            places=places or last,
            exit_code=0,
            joined=case.reason,
            reason=None,
            called=called,
        )
    if code is None and case.events[0].is_note:
        return case.finding("rank.exited", Severity.INFO, "ended without an exception; the exit code is unknown.")
    if code is not None and code >= 0:
        severity = Severity.FAILURE if case.independent else Severity.WARNING
        did = f"ended with exit code {code} and left no exception.{behind}"
        if places:
            did = f"ended with exit code {code}: it called sys.exit at {places[0].short()}."
        return case.finding("rank.exited", severity, did, places=places or last, exit_code=code, called=called)
    return _killed(case, code, [e for e in events if e.kind == "fatal_stack"])


def _notes(case: EndReports, events: list[LogEvent]) -> list[LogEvent]:
    return [event for event in events if event.is_note and set(event.ranks) & case.ranks]


def _called_exit(notes: list[LogEvent]) -> list[Location]:
    return distinct_places([event.location for event in notes if event.location])


def _killed(case: EndReports, code: int | None, fatal: list[LogEvent]) -> Finding:
    signal = signal_name(-code) if code is not None else case.events[0].row["code"]
    mine = [event for event in fatal if set(event.ranks) & case.ranks or event in case.events]
    places = [event.location for event in mine if event.location]
    last_words = next((event.row["text"] for event in mine), None)
    was = "was" if len(case.ranks) < 2 else "were"
    sent_by = next((by for event in mine if (by := event.details.get("sent_by"))), None)
    how = f"{was} killed by {signal}" if signal else f"died: {last_words}"
    how += f", which process {sent_by} sent," if signal and sent_by else ""
    why = f" ({case.reason})" if case.reason else ""
    where = f" at {places[0].short()}" if places else ""
    severity = Severity.FAILURE if case.independent else Severity.INFO
    facts = {"signal": signal, "exit_code": code, "last_words": last_words, "sent_by": sent_by}
    return case.finding("rank.killed", severity, f"{how}{where}{why}.", mine, places, **facts)
