"""Builds findings from known messages, with one mechanism for all of them.

`knowledge/signatures/` holds what a message means, which findings it raises and how its groups are named. This module
merges messages of several ranks that say the same into one finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ddx_tools.analysis.log_events.attribution import Enclosing
from ddx_tools.analysis.log_events.cuda_oom import parse_cuda_oom
from ddx_tools.analysis.log_events.fingerprint import message_values
from ddx_tools.analysis.log_events.handled_exceptions import handled_exceptions
from ddx_tools.analysis.log_events.known_ranks import read_crowd
from ddx_tools.analysis.log_events.log_event import LogEvent, is_training_step
from ddx_tools.knowledge.known_messages import Signature, signature
from ddx_tools.knowledge.library_messages import exception_messages
from ddx_tools.knowledge.phases import phase_of_exception
from ddx_tools.knowledge.xid_codes import BLAMELESS, xid_code
from ddx_tools.model.diagnosis import Finding, Location, Severity, rank_list

_EVIDENCE_LIMIT = 8
_WAYS_LIMIT = 8
_VALUES_LIMIT = 16
_TEXT_LIMIT = 200
_GENERAL = "log.signature"
_ORDER = ("root", "secondary", "context")
_OF_THE_ROW = ("quote", "in_year_s", "stream", "local_rank", "group", "reporter", "own_rank")
# Findings about ranks and collectives need more than one message; failures.py and collectives.py raise them.
_RAISED_ELSEWHERE = ("rank.", "collective.")
_UNITS = ("_bytes", "_ms", "_s", "_mhz")


@dataclass
class _Message:
    """One occurrence of a known message from one speaker."""

    known: Signature
    event: LogEvent
    values: dict[str, Any]
    around: LogEvent | None = None
    """The exception whose text contains it."""
    handled: bool = False
    """Its process went on after that exception."""
    line: LogEvent | None = None
    """The line that holds it, if known; an exception's event begins at its first line."""

    @property
    def ranks(self) -> list[int]:
        return self.event.ranks

    @property
    def role(self) -> str:
        """Return the message's role in a failure: its signature's role, unless the context lowers it.

        `context` if its process survived the exception; `secondary` for a driver error that only follows from another
        one.
        """
        if self.handled:
            return "context"
        return "secondary" if self.values.get("class") in BLAMELESS else self.known.role


@dataclass
class _Same:
    """Messages that are merged into one finding."""

    messages: list[_Message] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def message_findings(events: list[LogEvent]) -> list[Finding]:
    """Findings from all known messages, with those that report a failure of their own first."""
    messages = _messages(events)
    everybody = read_crowd(events).everybody
    steps_done = True if any(map(is_training_step, events)) else None
    by_subject: dict[tuple[str, str | None], list[_Message]] = defaultdict(list)
    for message in messages:
        for code in message.known.findings if not message.handled else (_GENERAL,):
            if not code.startswith(_RAISED_ELSEWHERE):
                by_subject[code, message.known.id if code == _GENERAL else None].append(message)
    findings = []
    for (code, _), told in by_subject.items():
        speakers = {rank for message in told for rank in message.ranks}
        common = {"all_ranks": _all_ranks(speakers, everybody), "steps_done": steps_done}
        findings += [_finding(code, same, common) for same in _grouped(told)]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.attributes["role"]))


# --- collecting the messages, each once


def _messages(events: list[LogEvent]) -> list[_Message]:
    """Known messages in lines and in whole exceptions; an exception's full text shows more than its single lines."""
    enclosing = Enclosing(events)
    whole = {id(event): _in_exception(event) for event in events if event.exception}
    handled = handled_exceptions(events)
    found = []
    for event in events:
        if event.kind in ("gloo", "watchdog", "signature"):
            around = enclosing.of(event)
            known = signature(event.row["code"])
            said = whole.get(id(around), [])
            if not any(known.id in (other.known.id, *other.known.replaces) for other in said):
                found.append(_line_message(known, event, around))
            for message in said:
                if message.known.id == known.id and message.line is None:
                    message.line = event
        elif event.kind == "traceback":
            found += whole.get(id(event), [])
    # An error file and a launcher's summary repeat what a rank already reported itself.
    told = {(message.known.id, rank) for message in found for rank in message.ranks}
    told_by_somebody = {message.known.id for message in found}
    for event in events:
        if event.kind in ("error_file", "failure_summary"):
            for message in whole.get(id(event), ()):
                names = {(message.known.id, rank) for rank in message.ranks}
                if not (names <= told if names else message.known.id in told_by_somebody):
                    found.append(message)
    return [replace(message, handled=id(message.around) in handled) for message in found]


def _line_message(known: Signature, event: LogEvent, around: LogEvent | None) -> _Message:
    groups = {name: str(value) for name, value in event.details.items()}
    frames = around.said[-1].frames if around else []
    return _Message(known, event, _values(known, groups, str(event.row["text"] or ""), frames), around)


def _in_exception(event: LogEvent) -> list[_Message]:
    """Known messages in an exception and its causes, each once."""
    found: dict[str, _Message] = {}
    for said in event.said:
        for match in exception_messages(said.text):
            values = _values(match.signature, match.groups, said.text, said.frames)
            before = found.get(match.signature.id)
            if before is None or len(values) > len(before.values):
                found[match.signature.id] = _Message(match.signature, event, values, event)
    return list(found.values())


def _values(known: Signature, groups: dict[str, str], text: str, frames: list[str]) -> dict[str, Any]:
    own = {name: value for name, value in groups.items() if name not in _OF_THE_ROW}
    values = message_values(known, own)
    if known.reader:
        values |= READERS[known.reader](text, values)
    return {**values, "phase": phase} if (phase := phase_of_exception(frames)) else values


# --- merging messages that say the same


def _grouped(messages: list[_Message]) -> Iterable[_Same]:
    """Group messages with the same identity: measures and lists may differ, everything else must be equal."""
    by_identity: dict[Any, _Same] = defaultdict(_Same)
    ways: dict[str, set[Any]] = defaultdict(set)
    for message in messages:
        ways[message.known.id].add(_identity(message.values))
    for message in messages:
        known = message.known
        # A message that names a different address on every rank is still one message.
        many = len(ways[known.id]) > _WAYS_LIMIT
        which = known.id if many else None
        identity = () if many else _identity(message.values)
        by_identity[message.role, which, identity].messages.append(message)
    for same in by_identity.values():
        same.values = _merged([message.values for message in same.messages])
    return by_identity.values()


def _identity(values: dict[str, Any]) -> Any:
    return tuple(sorted((name, value) for name, value in values.items() if not _may_differ(name, value)))


def _may_differ(name: str, value: Any) -> bool:
    return isinstance(value, list) or name.endswith(_UNITS)


def _merged(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge values by name: the largest measure, all items of lists, and for anything else each distinct value."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in values for name in one):
        said = [one[name] for one in values if name in one]
        if isinstance(said[0], list):
            merged[name] = sorted({item for items in said for item in items}, key=_by_number)[:_VALUES_LIMIT]
        elif name.endswith(_UNITS):
            merged[name] = max(said, key=_by_number)
        else:
            different = sorted(set(said), key=_by_number)
            merged[name] = different[0] if len(different) == 1 else different[:_VALUES_LIMIT]
    return merged


def _by_number(value: Any) -> tuple[bool, float, str]:
    is_text = isinstance(value, str)
    return (is_text, 0 if is_text else value, str(value))


# --- building the finding


def _finding(code: str, same: _Same, common: dict[str, Any]) -> Finding:
    messages = same.messages
    known = messages[0].known
    ranks = sorted({rank for message in messages for rank in message.ranks})
    attributes = {
        **{name: value[:_TEXT_LIMIT] if isinstance(value, str) else value for name, value in same.values.items()},
        **{name: value for name, value in common.items() if value is not None},
        "signatures": sorted({message.known.id for message in messages}),
        "count": len(messages),
        "role": messages[0].role,
        "basis": "log",
    }
    if code == _GENERAL:
        attributes |= {"signature": known.id, "meaning": known.meaning}
    who = rank_list(ranks).capitalize() if ranks else "The log"
    return Finding(
        code=code,
        severity=_severity(code, messages[0].role),
        ranks=ranks,
        hosts=sorted({message.event.row["host"] for message in messages if message.event.row["host"]}),
        summary=f"{who}: {known.meaning}{_said(same.values, known)}"[:600],
        evidence=[(message.line or message.event).evidence for message in messages[:_EVIDENCE_LIMIT]],
        locations=_places(messages),
        attributes=attributes,
    )


def _severity(code: str, role: str) -> Severity:
    if role == "root":
        return Severity.WARNING if code == _GENERAL else Severity.FAILURE
    return Severity.NOTICE if role == "secondary" else Severity.INFO


def _said(values: dict[str, Any], known: Signature) -> str:
    """The messages' own values in short: " (port 29500, phase load)"."""
    said = [(name, value) for name, value in values.items() if name not in known.attributes and value is not None]
    shown = [f"{name} {_shown(name, value)}" for name, value in said[:6]]
    return f" ({', '.join(shown)})" if shown else ""


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.2f} MiB"
    return ", ".join(map(str, value[:6])) if isinstance(value, list) else str(value)[:80]


def _places(messages: list[_Message]) -> list[Location]:
    places = [place for message in messages if message.around and (place := message.around.origin_location)]
    return list({(place.file, place.line): place for place in places}.values())[:_EVIDENCE_LIMIT]


def _all_ranks(speakers: set[int], everybody: frozenset[int]) -> bool | None:
    """Whether every rank printed it; None if the speakers are unknown, or the job has one rank."""
    return speakers >= everybody if speakers and len(everybody) > 1 else None


# --- readers, named in signatures, for messages that a single regular expression cannot parse


def _cuda_oom(text: str, _: dict[str, Any]) -> dict[str, Any]:
    return parse_cuda_oom(text) or {}


def _xid(text: str, values: dict[str, Any]) -> dict[str, Any]:
    code = xid_code(values["xid"], text.partition(f": {values['xid']}")[2])
    told = {"class": code.class_, "blame": code.blame, "action": code.action, "meaning": code.meaning}
    return told if code.fatal is None else {**told, "fatal": code.fatal}


READERS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {"cuda_oom": _cuda_oom, "xid": _xid}
"""Readers by name: functions of the message and its groups' values that return further attributes."""
