"""Reads torchrun's summary of failed ranks (torch/distributed/elastic/multiprocessing/errors/__init__.py, torch 1.9 to
2.15).

    ============================================================
    train.py FAILED
    ------------------------------------------------------------
    Failures:
    [1]:
      time      : 2026-11-21_05:13:33            the host's local time, without zone
      host      : node1
      rank      : 0 (local_rank: 0)
      exitcode  : -15 (pid: 9038)  (SIGTERM)
      error_file: <N/A>
      traceback : Signal 15 (SIGTERM) received by PID 9038
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      …
    ============================================================

"First observed" is the smallest time stamp among the ranks of one host, with a resolution of a second: it is
often a rank that only lost its connection. torch 1.9 calls the sections "Root Cause:" and "Other Failures:", and a
field "msg". A summary that was cut off at its top is known by its fields.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field

from ddx_tools.parsers.logs.log_lines import LogLine

_RULE = re.compile(r"([=\-*])\1{4,200}$")
_TITLE = re.compile(r"(.{1,300}) FAILED$")
_ENTRY = re.compile(r"\[(\d{1,6})\]:$")
_FIELD = re.compile(r"  (time|host|rank|exitcode|error_file|traceback|msg) *: ?(.*)$")
# A field with a value that only summaries have: the lines above it were cut off.
_CUT = re.compile(r"  (?:time +: \d{4}-\d\d-\d\d_\d\d:|rank +: \d{1,6} \(local_rank: |exitcode +: -?\d{1,6} \(pid: )")
_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,9})\)")
_SECTIONS = {
    "Failures:": False,
    "Root Cause (first observed failure):": True,
    "Root Cause:": True,
    "Other Failures:": False,
}
"""Maps each heading to whether its failures are the ones that the agent saw first."""
_OPENINGS = ("=", "-", "*", "R", "O", " ")
_ENTRY_LIMIT = 10_000
_TEXT_LINES = 400
_FOREIGN_LIMIT = 20

WAKING = (r"(?:={5}|-{5}|\*{5})\s*$", "Root Cause", "Other Failures:", r"  (?:time|rank|exitcode) +: ")
"""RE2 expressions; every line that may begin a summary matches one of them."""


@dataclass
class Failure:
    """One entry of the summary."""

    line: int
    raw: str
    is_first_observed: bool
    """Whether it is the agent's "root cause", which only means the smallest time stamp."""
    number: int | None = None
    """Its place in the summary; 0 is the one that the agent saw first. None if it was cut off."""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    """Negative: killed by that signal."""
    host: str | None = None
    time_s: float | None = None
    error_file: str | None = None
    text: list[str] = field(default_factory=list)
    """The traceback that the rank left (under @record), or the agent's remark."""


@dataclass
class FailureBlock:
    """A summary, as far as the log contains it."""

    line: int
    raw: str
    title: str | None
    failures: list[Failure] = field(default_factory=list)


class FailureBlockReader:
    """Collects the summaries of one stream, line by line."""

    def __init__(self) -> None:
        self._block: FailureBlock | None = None
        self._rule_before = False
        self._first_observed = False
        self._foreign = 0

    @property
    def is_open(self) -> bool:
        """Whether a summary has begun, or may begin with the next line."""
        return self._block is not None or self._rule_before

    def feed(self, line: LogLine) -> tuple[bool, FailureBlock | None]:
        """Take one line; return whether it belongs to a summary, and the summary that it ended."""
        if self._block is None:
            return self._start(line), None
        text = line.text.rstrip()
        if _RULE.match(text):
            return True, self.close() if text[0] == "=" and self._block.failures else None
        if self._take(self._block, line, text):
            return True, None
        self._foreign += 1
        return False, self.close() if self._foreign > _FOREIGN_LIMIT else None

    def close(self) -> FailureBlock | None:
        """End the log; return the unfinished summary, if any."""
        finished, self._block = self._block, None
        return finished

    def _start(self, line: LogLine) -> bool:
        if not self._rule_before and line.text[:1] not in _OPENINGS:
            return False
        text = line.text.rstrip()
        after_rule, self._rule_before = self._rule_before, bool(_RULE.match(text))
        title = _TITLE.match(text) if after_rule else None
        is_cut = bool(_CUT.match(text))
        if not title and not is_cut and (text not in _SECTIONS or text == "Failures:"):
            return False
        self._block = FailureBlock(line.number, line.raw, title[1].strip() if title else None)
        self._first_observed = _SECTIONS.get(text, False)
        self._foreign = 0
        if is_cut:
            self._block.failures.append(Failure(line.number, line.raw, is_first_observed=False))
            self._take(self._block, line, text)
        return True

    def _take(self, block: FailureBlock, line: LogLine, text: str) -> bool:
        if text in _SECTIONS:
            self._first_observed = _SECTIONS[text]
        elif entry := _ENTRY.match(text):
            if len(block.failures) < _ENTRY_LIMIT:
                block.failures.append(Failure(line.number, line.raw, self._first_observed, int(entry[1])))
        elif block.failures and (named := _FIELD.match(line.text)):
            _set(block.failures[-1], line, named[1], named[2].strip())
        elif text.startswith("  ") and block.failures:
            if len(block.failures[-1].text) < _TEXT_LINES:
                block.failures[-1].text.append(line.text[2:])
        else:
            return not text or text.strip() == "<NO_OTHER_FAILURES>"
        return True


def _set(failure: Failure, line: LogLine, name: str, value: str) -> None:
    if name == "time":
        failure.time_s = _local_time(value)
    elif name == "host":
        failure.host = value[:300]
    elif name == "rank" and (rank := _RANK.match(value)):
        failure.rank, failure.local_rank = int(rank[1]), int(rank[2])
    elif name == "exitcode" and (code := _EXIT.match(value)):
        failure.exit_code, failure.pid = int(code[1]), int(code[2])
        failure.line, failure.raw = line.number, line.raw
    elif name == "error_file":
        failure.error_file = None if value == "<N/A>" else value[:1000]
    elif name in ("traceback", "msg"):
        failure.text.append(value)


def _local_time(value: str) -> float | None:
    try:
        return dt.datetime.strptime(value, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=dt.UTC).timestamp()
    except ValueError:
        return None
