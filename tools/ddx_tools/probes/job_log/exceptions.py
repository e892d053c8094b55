"""Findings about exceptions of ranks: what was raised, where, and whether it is independent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ddx_tools.analysis.log_events.handled_exceptions import handled_exceptions
from ddx_tools.analysis.log_events.log_event import LogEvent, is_training_step, short_name
from ddx_tools.knowledge.known_messages import signature, signatures
from ddx_tools.knowledge.library_messages import UNDECIDED
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.job_log.end_reports import EndReports

_OF_AN_ABORT = "unhandled system error"
_TIMEOUT, _NCCL_ERROR = "torch_watchdog_timeout", "torch_nccl_error"
_INTERRUPTED = ("KeyboardInterrupt", "SystemExit")
# Exceptions that programs often raise and catch: such a one was probably handled before the next one.
_OFTEN_HANDLED = (
    "AttributeError", "Empty", "FileExistsError", "FileNotFoundError", "ImportError", "KeyError", "ModuleNotFoundError",
    "StopIteration",
)  # fmt: skip


def raises(events: list[LogEvent]) -> list[EndReports]:
    """Return the exceptions that ended ranks, equal ones of several ranks as one case."""
    cases: dict[tuple[Any, ...], EndReports] = defaultdict(EndReports)
    handled, aborted = handled_exceptions(events), _of_aborted_communicators(events)
    told: set[tuple[int, str, int]] = set()
    # A rank's own output first: an error file and the launcher's summary repeat it.
    order = {"traceback": 0, "error_file": 1, "failure_summary": 2}
    for event in sorted((e for e in events if e.exception), key=lambda e: order[e.kind]):
        name = short_name(event.exception)
        if event.is_launcher or id(event) in handled:
            continue
        repeats = {(rank, name, event.attempt) for rank in event.ranks}
        if event.kind != "traceback" and repeats and repeats <= told:
            continue
        told |= repeats
        independent, reason = (False, _TIMEOUT) if id(event) in aborted else _judge(event)
        place = (event.row["file"], event.row["line"])
        # Consequences of one kind belong together, whatever addresses their messages contain.
        key = (name, place, _pattern(event.message)) if independent else (name, _kind(reason))
        case = cases[key]
        case.add(event, set(event.ranks))
        case.independent, case.reason = independent, case.reason or reason
    return list(cases.values())


def _of_aborted_communicators(events: Sequence[LogEvent]) -> set[int]:
    """The ids of NCCL's errors on ranks whose watchdog had reported a timeout before.

    The watchdog then aborts the communicators, and whatever uses them raises. An error that tells more, such as of the
    GPU, or that comes after further steps, is none of these.
    """
    expired: set[tuple[int, int, str]] = set()
    found = set()
    for event in events:
        parts = {(rank, event.attempt, event.row["source"]) for rank in event.ranks}
        if event.kind == "watchdog" and event.limit_expired:
            expired |= parts
        elif is_training_step(event):
            expired -= parts
        elif event.exception and parts and parts <= expired and _OF_AN_ABORT in event.message:
            known = {match.signature.id for match in [*event.known_messages(origin=True), *event.known_messages()]}
            if known == {_NCCL_ERROR}:
                found.add(id(event))
    return found


def _judge(event: LogEvent) -> tuple[bool | None, str | None]:
    """Whether an exception is independent and, if not, what it follows from."""
    if short_name(event.exception) in _INTERRUPTED:
        return False, "interrupted"
    if event.details.get("aside"):
        return None, "raised in a helper thread or ignored: it did not end the process"
    if told := _tells_of_peers(event, origin=True):
        return False, told
    causes = event.details.get("causes")
    told = _tells_of_peers(event)
    if told and causes and short_name(causes[0]["exception"]) in _OFTEN_HANDLED:
        return False, told
    for match in event.known_messages(origin=True):
        if match.signature.id in UNDECIDED:
            return None, match.signature.id
    return True, None


def is_consequence(event: LogEvent) -> bool:
    """Return whether an exception only follows from a peer's end, a timeout or an aborted communicator."""
    return _judge(event)[0] is False


def _tells_of_peers(event: LogEvent, *, origin: bool = False) -> str | None:
    for match in event.known_messages(origin=origin):
        known = match.signature
        if known.role == "secondary" or any(code.startswith("collective.") for code in known.findings):
            return known.id
    return None


def _tells(event: LogEvent) -> list[str] | None:
    """The finding codes for its message: an exception that names an outside cause is not a fault of the program."""
    known = [*event.known_messages(origin=True), *event.known_messages()]
    return sorted({code for match in known for code in match.signature.findings if code != "log.signature"}) or None


def _kind(reason: str | None) -> Any:
    """A key for the kind of consequence: those with the same findings, such as a closed or reset connection, are one
    kind."""
    return tuple(signature(reason).findings) if reason in {known.id for known in signatures()} else reason


def _pattern(message: str) -> str:
    """The first line of a message without its numbers, which is the same on all ranks."""
    return re.sub(r"\d+", "#", message.split("\n", 1)[0])[:300]


_OF_LIBRARIES = re.compile(r"(?:site|dist)-packages/|/lib/python3|^(?:torch|multiprocessing|threading|subprocess)/|^<")
_OF_INSTALLED = re.compile(r"(?:site|dist)-packages/(?!numpy/|pandas/|PIL/|cv2/|torch/(?!distributed/))")
"""Installed packages, except those that a program calls directly all the time."""


def raised_finding(case: EndReports, codes: dict[int, int]) -> Finding:
    """Return the finding about an exception."""
    event = case.events[0]
    # A rank that failed, then lost its peers during clean-up, raised the exception it failed with.
    from_origin = bool(case.independent) and _tells_of_peers(event) is not None
    exception, message = event.origin if from_origin else (event.exception, event.message)
    name, message = short_name(exception), message.strip().split("\n", 1)[0][:400]
    frames = event.said[0 if from_origin else -1].frames
    before = event.origin if event.origin != (event.exception, event.message) and not from_origin else None
    places = case.places(origin=from_origin)
    known = event.known_messages(origin=True) or event.known_messages()
    where = f" at {places[0].short()}" if places else ""
    what = f"{name}: {message}" if message else name
    role = "" if case.independent else " (a consequence)"
    return case.finding(
        "rank.raised",
        Severity.FAILURE if case.independent else Severity.NOTICE,
        f"{f'raised {what}{where}{role}'.removesuffix('.')}.",
        places=places,
        exception=exception,
        message=message,
        signature=known[0].signature.id if known else None,
        tells=_tells(event),
        exit_codes=case.codes(codes),
        in_program=any(not _OF_LIBRARIES.search(place.file) for place in places) or None,
        in_library=bool(frames and _OF_INSTALLED.search(frames[-1])) or None,
        caused_by=f"{before[0]}: {before[1]}"[:400] if before else None,
    )
