"""Rows of `log_events` as analyses read them, and findings about printed steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.ranks.job_time import JobTime
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.known_messages import SignatureMatch, kernel_signatures
from ddx_tools.knowledge.library_messages import exception_messages
from ddx_tools.model.diagnosis import Evidence, Finding, Location, Severity
from ddx_tools.model.user_frames import module_path

REPORTED_ENDS = ("failure_summary", "exit")
"""Kinds of rows in which a launcher or a shell reports how ranks ended."""
OWN_ENDS = ("fatal_stack", "error_file")
"""Kinds of rows that a process leaves when it ends; it may have survived a traceback."""

_QUOTE_LIMIT = 300
_FRAMES_LIMIT = 12
_LAUNCHERS = ("ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException")
_C10D = "torch/distributed/distributed_c10d.py"
_LIMIT_EXPIRED = ("torch_watchdog_timeout", "torch_work_timed_out", "gloo_timeout", "torch_watchdog_nccl2")


def is_kernel_message(kind: str, code: str | None) -> bool:
    """Whether a row of `log_events` is a message of the kernel or of a driver in it."""
    return kind == "signature" and code in kernel_signatures()


@dataclass
class LogEvent:
    """A row of `log_events`, and the ranks it was attributed to."""

    row: dict[str, Any]
    details: dict[str, Any]
    ranks: list[int] = field(default_factory=list)
    joined: str | None = None
    """How the ranks were determined, if the row itself does not state them."""
    caught: bool = False
    """The traceback's process is known to have survived it."""

    @property
    def kind(self) -> str:
        """Kind of the row, such as `traceback`, `watchdog` or `step`."""
        return str(self.row["kind"])

    @property
    def limit_expired(self) -> bool:
        """Whether it says that an operation's timeout expired."""
        return self.row["code"] in _LIMIT_EXPIRED

    @property
    def about_s(self) -> float | None:
        """Return the event's time or, if its line has no date, that of a dated line just above it.

        In seconds since the epoch; None if neither is known.
        """
        time_s: float | None = self.row["time_s"]
        return self.details.get("after_s") if time_s is None else time_s

    def may_be_of(self, ran: JobTime | None) -> bool:
        """Whether the event may belong to the job, judged by its time.

        Only kernel messages from clearly before or after the job are excluded. `ran`: when the job ran; None if
        unknown, and then the result is True.
        """
        if ran is None or not is_kernel_message(self.kind, self.row["code"]):
            return True
        return ran.holds(self.row["time_s"], self.details.get("in_year_s"))

    @property
    def is_note(self) -> bool:
        """Whether the event is a note that the rank's own interpreter wrote when it exited.

        It shows how the rank meant to end, not how it did end.
        """
        return self.details.get("event") == "note"

    @property
    def attempt(self) -> int:
        """Restart attempt; 0 for the first, or if unknown."""
        return self.row["attempt"] or 0

    @property
    def evidence(self) -> Evidence:
        """Evidence that quotes the event's lines."""
        quote = self.details.get("quote") or self.row["text"] or ""
        return Evidence(source=self.row["source"] or "", line=self.row["source_line"], quote=quote[:_QUOTE_LIMIT])

    @property
    def location(self) -> Location | None:
        """The place in the program that the event names; None if it names none."""
        return _location(self.row)

    @property
    def last_call(self) -> list[Location]:
        """The place where an ended rank called its last collective, innermost frame first."""
        return [place for told in self.details.get("last_call", ()) if (place := _location(told))]

    @property
    def origin_location(self) -> Location | None:
        """The place where the oldest exception in the chain was raised."""
        causes = self.details.get("causes")
        return (_location(causes[0]) if causes else None) or self.location

    @property
    def exception(self) -> str | None:
        """The exception that a traceback, an error file or a launcher's summary reports."""
        if self.kind in ("traceback", "error_file"):
            code: str | None = self.row["code"]
            return code
        return self.details.get("exception") if self.kind == "failure_summary" else None

    @property
    def message(self) -> str:
        """The exception's message."""
        return str(self.details.get("message") if self.kind == "failure_summary" else self.row["text"]) or ""

    @property
    def origin(self) -> tuple[str | None, str]:
        """Name and message of the oldest exception in the chain."""
        causes = self.details.get("causes")
        return (causes[0]["exception"], causes[0]["message"]) if causes else (self.exception, self.message)

    @property
    def is_launcher(self) -> bool:
        """Whether the exception is a launcher's report about its ranks, not a rank's own."""
        name = short_name(self.exception)
        if name in _LAUNCHERS:
            return True
        return name == "CalledProcessError" and "returned non-zero exit status" in self.message and not self.ranks

    @property
    def operation(self) -> str | None:
        """The torch.distributed function that the program called, from the frames."""
        return _operation(json.loads(self.row["frames"] or "[]"))

    def part_at(self, line: int) -> tuple[Location | None, str | None]:
        """Return the (place, operation) of the exception in a traceback's chain that a log line belongs to.

        `line`: line number in the log. Each is None if unknown.
        """
        for cause in self.details.get("causes", ()):
            if cause["source_line"] >= line:
                return _location(cause), _operation(cause["frames"])
        return self.location, self.operation

    @property
    def said(self) -> list[ChainedException]:
        """Return the exceptions of the event's traceback, oldest first; the last is the event's own."""
        causes = [
            ChainedException(cause["exception"], cause["message"], cause["frames"])
            for cause in self.details.get("causes") or ()
        ]
        return [*causes, ChainedException(self.exception, self.message, json.loads(self.row["frames"] or "[]"))]

    def known_messages(self, *, origin: bool = False) -> tuple[SignatureMatch, ...]:
        """Known messages in the exception's text; with `origin`, in that of the oldest exception in its chain."""
        return exception_messages(self.said[0 if origin else -1].text)


@dataclass(frozen=True)
class ChainedException:
    """One exception in a chain of causes."""

    exception: str | None
    message: str
    frames: list[str]
    """Frames as in `log_events.frames`, outermost first."""

    @property
    def text(self) -> str:
        """The exception on one line; on a second line, after `@`, its frames, innermost first."""
        places = []
        for frame in reversed(self.frames[-_FRAMES_LIMIT:]):
            place, _, function = frame.partition(" ")
            file, _, number = place.rpartition(":")
            places.append(f"{module_path(file)}:{number} {function}".rstrip())
        words = re.sub(r"[ \t]*\n\s*", " ", f"{self.exception}: {self.message}").strip()
        return f"{words}\n@ {' '.join(places)}"


def short_name(exception: str | None) -> str:
    """The unqualified exception name, `DistError` for `torch.distributed.DistError`, as error files write it."""
    return (exception or "").rpartition(".")[2]


def _operation(frames: list[str]) -> str | None:
    for frame in frames:
        place, _, function = frame.partition(" ")
        if module_path(place.rpartition(":")[0]) == _C10D:
            return function or None
    return None


def _location(place: dict[str, Any]) -> Location | None:
    if not place.get("file"):
        return None
    return Location(file=place["file"], line=place["line"], function=place["function"], source=place.get("code_line"))


def read_events(store: Store) -> list[LogEvent]:
    """Read all rows of `log_events`, in source order.

    A step mentioned in an exception ("batch 6: bad label") does not count as a step that was made.
    """
    rows = store.query(
        """SELECT * FROM log_events WHERE kind != 'step' OR (source, source_line) NOT IN
           (SELECT (source, source_line) FROM log_events WHERE kind = 'traceback')
           ORDER BY source, source_line, kind"""
    )
    return [
        LogEvent(row, json.loads(row["details"] or "{}"), [] if row["rank"] is None else [row["rank"]]) for row in rows
    ]


# --- rows of printed progress, and findings built from them

_EVIDENCE_LIMIT = 8


def is_training_step(event: LogEvent) -> bool:
    """Whether a row is a step of training, and not progress of other work such as a download or tokenizing."""
    return event.kind == "step" and not event.details.get("own_work")


def step_number(event: LogEvent) -> int | None:
    """The step number, or the batch number if no step is printed."""
    step: int | None = event.details.get("step")
    return step if step is not None else event.details.get("batch")


def step_unit(event: LogEvent) -> str:
    """Which of the two `step_number` returns: `step` or `batch`."""
    return "step" if event.details.get("step") is not None else "batch"


def step_position(event: LogEvent) -> tuple[float, int]:
    """A sort key for progress: (epoch, step or batch number)."""
    return event.details.get("epoch") or 0.0, step_number(event) or 0


def step_finding(
    code: str,
    severity: Severity,
    events: list[LogEvent],
    summary: str,
    attributes: dict[str, Any],
    ranks: Iterable[int] | None = None,
) -> Finding:
    """Build a finding from rows of progress; about the ranks of these rows unless `ranks` is given."""
    told = {rank for event in events for rank in event.ranks} if ranks is None else set(ranks)
    facts = {**attributes, "basis": "log"}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted(told),
        hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
        summary=summary[:600],
        evidence=[event.evidence for event in events[:_EVIDENCE_LIMIT]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )
