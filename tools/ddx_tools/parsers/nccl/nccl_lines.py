"""Lines of NCCL_DEBUG output: the prefix that NCCL puts before each message, in all its versions.

    node:4242:4300 [3] NCCL INFO …                             host:pid:tid [CUDA device]   (debug.cc of 2.18 to 2.30)
    node:4242:4300 [3] transport/net.cc:77 NCCL WARN …         behind an empty line
    [2026-11-21 10:00:00] node:4242:4300 [3] …                 2.26 and later; by default for WARN only
    node:4242:4300 [3] init.cc:77 (ncclCommInit) NCCL WARN …   2.30 and later
    node:4242:4300 [3] init.cc:77 (ncclCommInit) NCCL ERROR …  2.31: a level of its own for root causes, read as WARN is
    NCCL version 2.21.5+cuda12.4                               the banner has no prefix

A launcher may have put labels before it (`3: `, `[rank3]: `, `[1,3]<stdout>:`, a time), or colours into it. The
number in brackets is the CUDA device in its process, never a rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_LIMIT = 4_000
"""Characters looked at; NCCL itself cuts a line at 1,024."""

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]")
_PREFIX = re.compile(
    r"(?:\[(?P<time>\d[^\]\n]{3,40})\] )?"
    r"(?P<host>[A-Za-z0-9_][\w.-]{0,252}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[(?P<device>\d{1,4})\] )?"
    r"(?:(?P<file>[\w./-]{1,200}):(?P<line>\d{1,7}) (?:\((?P<function>[^()\n]{1,120})\) )?)?"
    r"NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_BANNER = re.compile(r"NCCL version (?P<version>\d{1,3}\.\d{1,3}[\w.+-]{0,60}?)(?:\+cuda(?P<cuda>\d{1,3}\.\d{1,3}))?$")
_TEST_RANK = re.compile(
    r"# +Rank +(?P<rank>\d{1,7}) (?:Group +\d{1,7} )?Pid +(?P<pid>\d{1,10}) on +(?P<host>[\w.-]{1,253}) device +\d"
)
_RANK_LABEL = re.compile(r"\[rank:? ?(\d{1,6})\]|\[\d{1,6},(\d{1,6})\]<std(?:out|err)>", re.I)


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One message, and who wrote it."""

    host: str
    pid: int
    tid: int
    device: int | None
    """CUDA device in the process."""
    level: str
    """INFO, WARN or ERROR."""
    text: str
    raw: str
    """The line as it stands in the file, without colours."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    time: str | None = None
    rank_label: int | None = None
    """What a launcher or torch wrote before the line."""


def read_nccl_line(raw: str) -> NcclLine | None:
    """A line of NCCL; None for anything else."""
    raw = plain(raw)
    found = _PREFIX.search(raw)
    if not found:
        return None
    label = _RANK_LABEL.search(raw, 0, found.start())
    return NcclLine(
        host=found["host"],
        pid=int(found["pid"]),
        tid=int(found["tid"]),
        device=int(found["device"]) if found["device"] else None,
        level=found["level"],
        text=found["text"].strip(),
        raw=raw.strip(),
        file=found["file"],
        line=int(found["line"]) if found["line"] else None,
        function=found["function"],
        time=found["time"],
        rank_label=int(label[1] or label[2]) if label else None,
    )


def read_banner(text: str) -> tuple[str, str | None] | None:
    """(NCCL version, CUDA version it was built with) of a banner, with or without a prefix before it."""
    found = _BANNER.search(text.rstrip())
    return (found["version"], found["cuda"]) if found else None


def read_test_rank(text: str) -> tuple[str, int, int] | None:
    """(host, pid, rank) of a line that nccl-tests print for each rank before they begin (common.cu)."""
    found = _TEST_RANK.search(text)
    return (found["host"], int(found["pid"]), int(found["rank"])) if found else None


def plain(raw: str) -> str:
    """A bounded line without colours."""
    raw = raw[:LINE_LIMIT]
    return _ANSI.sub("", raw) if "\x1b" in raw else raw


_MARKS = (b" NCCL INFO ", b" NCCL WARN ", b" NCCL ERROR ")


def holds_nccl(data: bytes) -> bool:
    """Whether NCCL wrote lines of a piece of a file."""
    return any(mark in data for mark in _MARKS)
