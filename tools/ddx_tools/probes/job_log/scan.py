"""One log file → rows of `log_events`.

The lines that can matter (`ddx_tools.parsers.lines.selection`) go to the readers of their stream, that is, of the
process whose labels they have; a reader that claims a line keeps it from the others. As long as a reader is awake, all
following lines are read.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.analysis.log_events.log_event import REPORTED_ENDS
from ddx_tools.knowledge.known_messages import match_signatures
from ddx_tools.knowledge.library_messages import line_messages
from ddx_tools.model.files.log_text import BLOCK_BYTES, HEAD_BYTES, Readable, TextBlock
from ddx_tools.parsers.lines.selection import Allowance, LineSelection
from ddx_tools.parsers.lines.stream import read_lines
from ddx_tools.parsers.logs.launcher_words import launcher_event
from ddx_tools.parsers.logs.log_lines import FileIdentity, LogLine, lines_of
from ddx_tools.parsers.logs.log_prefixes import Labels, seconds_without_year
from ddx_tools.parsers.logs.new_starts import NewStart, new_start
from ddx_tools.parsers.logs.rank_values import rank_values
from ddx_tools.parsers.logs.step_lines import step_facts
from ddx_tools.parsers.logs.torchrun import FailureBlock, FailureBlockReader
from ddx_tools.parsers.python.fatal_stack import FatalStackReader
from ddx_tools.parsers.python.python_traceback import ASIDE, TracebackReader
from ddx_tools.parsers.python.traceback_parts import Traceback
from ddx_tools.probes.job_log.log_facts import TAIL_BYTES, LogFacts
from ddx_tools.probes.job_log.row_writer import Row, RowWriter
from ddx_tools.probes.job_log.step_rows import StepRows, ValueRows
from ddx_tools.redaction.text import MARK

_FAILURES = ("traceback", "fatal_stack", *REPORTED_ENDS)
_STREAM_LIMIT = 20_000
_SILENCE_LINES = 20_000
"""After this many lines of other processes, an unfinished message of a process counts as ended."""

_NEAR_LINES = 50
"""A message without a date is taken to be from the time of a dated line at most this far above it."""
_DATED_LINES = 400

_SHORT_SILENCE_LINES = 200
"""The same limit, in a log of which too much was already read."""
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_KEY_LINE = re.compile(rb"(?:^|[ |:])[A-Za-z0-9+/=]{8,200}\s{0,8}$")
_KEY_LINES = 200
"""The maximum number of lines of a private key, including other lines between them."""


@dataclass
class _Stream:
    """One process's stream of lines: its readers, and its progress."""

    first: LogLine
    traceback: TracebackReader = field(default_factory=TracebackReader)
    fatal: FatalStackReader = field(default_factory=FatalStackReader)
    summary: FailureBlockReader = field(default_factory=FailureBlockReader)
    steps: StepRows = field(default_factory=StepRows)
    aside: int | None = None
    """The line that announced a traceback that ends no process: from a helper thread, or ignored."""
    process_index: int | None = None
    """The process index that mp.spawn printed, for the next traceback."""
    last_number: int = 0

    @property
    def is_awake(self) -> bool:
        """Whether a traceback, fatal error or failure summary of this stream may go on in the next line."""
        return self.traceback.is_open or self.fatal.is_open or self.summary.is_open


def scan_log(
    stream: Readable, source: str, identity: FileIdentity, host: str | None, block_bytes: int = BLOCK_BYTES
) -> list[Row]:
    """Read one log and return its rows, in line order."""
    log = JobLog(source, identity, host)
    read_lines(stream, [log], block_bytes)
    return log.rows()


class JobLog:
    """Collects the rows of a job's output: a consumer of its lines (`ddx_tools.parsers.lines.stream`)."""

    def __init__(
        self, source: str, identity: FileIdentity, host: str | None, prose: frozenset[int] = frozenset()
    ) -> None:
        self._rows = RowWriter(source, identity, host)
        self._prose = prose
        """The lines that a person wrote: a message named in a sentence was not printed, and may be denied there."""
        self._numbered = identity.attempt is None
        """Whether attempts are numbered by the ends that the log reports."""
        self._labels: Labels | None = None
        self._allowance = Allowance()
        self._held: LineSelection | None = None
        """The previous block, which is read once the beginning of the next one is known."""
        self._streams: dict[str, _Stream] = {}
        self._awake: set[str] = set()
        self._awake_until = 0
        """The line after which no reader continues its unfinished message."""
        self._key_until = 0
        """The line after which no line belongs to a private key."""
        self.too_long = 0
        """How many lines were cut, because no message is that long."""
        self._ends: list[AttemptEnd] = []
        self._starts: list[NewStart] = []
        self._values = ValueRows()
        self._before = b""
        """The end of the block before the held one."""
        self._dated: deque[tuple[int, float]] = deque(maxlen=_DATED_LINES)
        """The last lines with a date that were read."""
        self.facts = LogFacts()

    look = LineSelection
    """Selects the lines of a block that can matter."""

    def take(self, block: TextBlock, seen: LineSelection) -> None:
        """Read the lines that matter in the previous block, and hold this one."""
        self.too_long += block.too_long
        if self._labels is None:
            self._labels = Labels(seen.block.data[:HEAD_BYTES])
            self.facts.take_head(seen.block.data[:HEAD_BYTES], self._labels)
        held, self._held = self._held, seen
        if held is not None:
            self._before = held.block.data[-TAIL_BYTES:]
            self._take_block(held, seen.kinds)

    @property
    def left_out(self) -> int:
        """Return how many lines were skipped because many similar ones had been read.

        Only lines count that might have begun a message, such as a traceback.
        """
        return self._allowance.left_out

    def _take_block(self, block: LineSelection, following: set[bytes]) -> None:
        """Read the lines that matter in a block, and their continuation."""
        assert self._labels is not None
        block.choose(self._allowance, following)
        behind = 0
        start = 0 if self._awake else block.next_place(0)
        while start is not None:
            if block.skips_progress(behind, start):
                self._values.leave_out()
            behind = len(block)
            for place, number, piece in block.pieces(start):
                if (onward := block.goes_on_at(place)) is not None:
                    self._forget()
                    behind = onward
                    break
                for line in lines_of(number, self._without_key(number, piece), self._labels):
                    self._take(line)
                if not self._awake or number > self._awake_until:
                    behind = place + 1
                    break
            start = block.next_place(behind)
        if block.skips_progress(behind, None):
            self._values.leave_out()

    def _without_key(self, number: int, piece: bytes) -> bytes:
        """A line with any private key removed; the key may begin in earlier lines."""
        if _KEY_BEGINS.search(piece):
            self._key_until = number + _KEY_LINES
        elif number < self._key_until and _KEY_LINE.search(piece):
            return MARK.encode()
        return piece

    def _forget(self) -> None:
        """Drop unfinished messages, because they continue in lines that are left out."""
        for name in self._awake:
            stream = self._streams[name]
            stream.traceback, stream.fatal, stream.summary = TracebackReader(), FatalStackReader(), FailureBlockReader()
        self._awake.clear()

    def rows(self) -> list[Row]:
        """Return all rows in line order, once the log has ended; their number is bounded."""
        held, self._held = self._held, None
        if held is not None:
            assert self._labels is not None
            tail = held.block.data[-TAIL_BYTES:]
            self.facts.take_tail((self._before + tail)[-TAIL_BYTES:], self._labels)
            self._take_block(held, set())
        for stream in self._streams.values():
            self._close(stream)
            for line, details in stream.steps.rows():
                self._rows.step(line, details)
        for line, details in self._values.rows():
            self._rows.value(line, details)
        rows = self._rows.rows()
        bounds = attempt_bounds(self._ends) if self._numbered else []
        if bounds:
            for row in rows:
                row["attempt"] = bisect_left(bounds, row["source_line"])
        last_step = max((row["source_line"] for row in rows if row["kind"] == "step"), default=0)
        starts = [start for start in self._starts if not start.if_steps_follow or start.line < last_step]
        start = last_start(starts, [row for row in rows if row["kind"] in _FAILURES])
        for row in rows:
            row["superseded"] = start is not None and row["source_line"] <= start
            if row["superseded"] and row["kind"] in _FAILURES and row["time_s"] is None:
                row["details"] = _with_time(row["details"])
        self.facts.hosts = [each for each in self.facts.hosts if start is None or each.line > start]
        return rows

    # --- lines ----------------------------------------------------------------------------------------------

    def _take(self, line: LogLine) -> None:
        if line.time_s is not None:
            self._dated.append((line.number, line.time_s))
        stream = self._streams.get(line.stream)
        if stream is None:
            if len(self._streams) >= _STREAM_LIMIT:
                return
            stream = self._streams[line.stream] = _Stream(line)
        if stream.is_awake and line.number - stream.last_number > _SILENCE_LINES:
            self._close(stream)
        stream.last_number = line.number
        self._read(stream, line)
        if stream.is_awake:
            self._awake.add(line.stream)
            self._awake_until = line.number + (_SHORT_SILENCE_LINES if self._allowance.is_spent else _SILENCE_LINES)
        else:
            self._awake.discard(line.stream)

    def _read(self, stream: _Stream, line: LogLine) -> None:
        in_summary, block = stream.summary.feed(line)
        if block:
            self._add_summary(block, line.number)
        if in_summary:
            return
        in_fatal, fatal = stream.fatal.feed(line)
        if fatal:
            self._rows.fatal(_with_number(stream.first, fatal.line, fatal.raw), fatal)
        if in_fatal:
            return
        for traceback in stream.traceback.feed(line):
            self._add_traceback(stream, traceback)
        if ASIDE.match(line.text):
            stream.aside = line.number
        self._read_words(stream, line)

    def _read_words(self, stream: _Stream, line: LogLine) -> None:
        if line.number in self._prose:
            return
        if event := launcher_event(line.text):
            if event.kind == "spawn_raised":
                stream.process_index = event.index
            else:
                self._rows.event(line, event)
            if event.kind == "failed":
                self._ends.append(AttemptEnd(line.number, agent=(line.host, line.writer)))
        if start := new_start(line):
            self._starts.append(start)
        for match in match_signatures(line.text) or line_messages(line.text):
            self._rows.signature(line, match)
        if stream.traceback.in_frames:
            return
        if facts := step_facts(line.text):
            stream.steps.take(line, facts)
            if facts.step is not None and not facts.own_work:
                self._values.step(line, facts.step, facts.rank)
        if values := rank_values(line.text):
            self._values.take(line, values)

    def _close(self, stream: _Stream) -> None:
        if block := stream.summary.close():
            self._add_summary(block, stream.last_number)
        if fatal := stream.fatal.close():
            self._rows.fatal(_with_number(stream.first, fatal.line, fatal.raw), fatal)
        for traceback in stream.traceback.close():
            self._add_traceback(stream, traceback)

    def _add_traceback(self, stream: _Stream, traceback: Traceback) -> None:
        index, stream.process_index = stream.process_index, None
        self._rows.traceback(
            _with_number(stream.first, traceback.raw_line, traceback.raw),
            traceback,
            process_index=index,
            aside=_is_aside(stream, traceback),
            after_s=self._time_above(traceback.origin.line),
            at_s=next((time_s for at, time_s in reversed(self._dated) if at == traceback.origin.line), None),
        )

    def _time_above(self, number: int) -> float | None:
        """The time of the last line with a date, if that is not far above a line."""
        return next((time_s for at, time_s in reversed(self._dated) if number - _NEAR_LINES <= at <= number), None)

    def _add_summary(self, block: FailureBlock, last_line: int) -> None:
        self._rows.summary(block)
        ranks = frozenset(failure.rank for failure in block.failures if failure.rank is not None)
        self._ends.append(AttemptEnd(last_line, ranks=ranks))


def _with_time(details: str) -> str:
    """A row's details with the time of its line, if that has no year: then in seconds of an arbitrary one."""
    known = json.loads(details)
    in_year_s = _in_year_s(known)
    return details if in_year_s is None else json.dumps({**known, "in_year_s": in_year_s}, ensure_ascii=False)


def _in_year_s(details: Mapping[str, Any]) -> float | None:
    return seconds_without_year(str(details.get("quote", ""))[:200])


def _with_number(first: LogLine, number: int, raw: str) -> LogLine:
    """A line of the stream that `first` belongs to; lines without labels may be from any process."""
    if not first.stream:
        return LogLine(number, raw, raw)
    return LogLine(number, raw, raw, first.stream, first.rank, first.local_rank, None, first.pid, host=first.host)


def _is_aside(stream: _Stream, traceback: Traceback) -> bool | None:
    """Whether the line above a traceback says that it does not end the process."""
    return True if stream.aside is not None and 0 < traceback.origin.line - stream.aside <= 2 else None


# --- several attempts of a job in one log: restarts by its launcher, and runs whose output was appended
# Nothing announces a restart. A repeated end shows it: an agent sees its ranks fail again, or a summary lists a rank
# that another one listed. Summaries of several hosts list different ranks.


@dataclass(frozen=True)
class AttemptEnd:
    """A launcher's report of the end of an attempt."""

    line: int
    agent: Any = None
    """The agent that saw ranks fail, if the line names it; None for a summary."""
    ranks: frozenset[int] | None = None
    """The ranks that a summary lists."""


def attempt_bounds(ends: Iterable[AttemptEnd]) -> list[int]:
    """Return the numbers of the lines after which another restart attempt begins, in order.

    A new attempt is assumed where a launcher's agent, or a rank in a summary, is reported to have failed again.
    """
    bounds: set[int] = set()
    agents: set[Any] = set()
    ranks: set[int] = set()
    last = last_summary = 0
    for end in sorted(ends, key=lambda end: end.line):
        if end.ranks is None:
            if end.agent in agents:
                bounds.add(last)
                agents.clear()
            agents.add(end.agent)
        else:
            if end.ranks & ranks:
                bounds.add(last_summary)
                ranks.clear()
            ranks |= end.ranks
            last_summary = end.line
        last = end.line
    return sorted(bounds)


def last_start(starts: Sequence[NewStart], failures: Sequence[Row]) -> int | None:
    """Return the line at which the job was last restarted; None if nothing shows a restart.

    A command traced by a shell is a restart if something failed above it, and if it runs the same program as before. A
    launcher's start is one if something failed above it and earlier.
    """
    first_failure = min((row["source_line"] for row in failures), default=None)
    programs: set[str] = set()
    last = None
    failed = _times_in_year(failures) if any(start.launcher is not None for start in starts) else []
    for start in starts:
        if start.launcher is not None:
            if _began_after_failure(start, failed):
                last = start.line
            continue
        if start.program is None:
            last = start.line
            continue
        again = not programs or start.program in programs
        if again and first_failure is not None and first_failure < start.line:
            last = start.line
        programs.add(start.program)
    return last


def _began_after_failure(start: NewStart, failed: Sequence[tuple[int, float]]) -> bool:
    """Whether a start is below a failure and later: in logs of several hosts one after the other, it is earlier."""
    above = [in_year_s for line, in_year_s in failed if line < start.line]
    return bool(above) and start.in_year_s is not None and start.in_year_s > max(above)


def _times_in_year(failures: Sequence[Row]) -> list[tuple[int, float]]:
    """The lines of failures with a time but no year, and that time."""
    found = ((row["source_line"], _in_year_s(json.loads(row["details"]))) for row in failures)
    return [(line, in_year_s) for line, in_year_s in found if in_year_s is not None]
