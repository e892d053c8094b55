"""Reads the prefixes of a log line, and the facts in them about its writer.

Prefixes come from several programs, and one line can have several:

    [rank3]:             torch's excepthook and C++ log (distributed_c10d.py, c10/util/Logging.cpp), Lightning's
    [default3]:          torchrun --tee: role and *local* rank (elastic/multiprocessing/tail_log.py)
    [Rank 3] [PG ID 0 PG GUID 0(default_pg) Rank 3]   ProcessGroupNCCL.cpp
    [1,3]<stderr>:       mpirun --tag-output (Open MPI; PRRTE puts a name before the number of the job): job, rank
    3:   [3]             srun --label, mpiexec -prepend-rank: task, which is a rank only if each task is one
    node-1:   node-1 |   pdsh, DeepSpeed, clush, docker compose: host, if nearly all lines start with it
    (RayTrainWorker pid=123, ip=10.0.0.1)             Ray
    [pod/train-0/pytorch]                             kubectl logs --prefix
    Nov 21 10:00:00 node-1 python[4242]:              journalctl, syslog
    E1121 10:00:00.123456 4242 path.py:12]            Python's glog form: no year, no zone
    [E506 10:00:00.123456789 path.cpp:632]            C++'s: no zero before the month (c10/util/Logging.cpp)
    [INFO|trainer.py:12] 2026-11-21 10:00:00,123 >>   transformers
    2026-11-21T10:00:00.123Z stderr F                 Kubernetes (CRI), and loggers
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass

_LEVEL = r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\b"
_RANK = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?", re.I)
_RANK_WORD = re.compile(r"(?:Rank|rank|RANK)[ =_]?(\d{1,6})(?::| ?\|) ?")
_R_LABEL = re.compile(r"(?:\[r(\d{1,5})\]:? ?|r(\d{1,5}): ?(?! ?[-+.]?\d))")
_ROLE = re.compile(r"\[(?:default|trainer)(\d{1,4})\]:")
_GROUP_RANK = re.compile(r"\[PG (?:ID )?(\d{1,6})[^\]]{0,160}? ?Rank (\d{1,6})\] {0,2}")
_MPIRUN = re.compile(r"\[(?:[\w.-]{1,80}@)?\d{1,10},(\d{1,6})\]<std(?:out|err|diag)>: ?")
_POD = re.compile(r"\[(pod/[\w./-]{1,200})\] ?")
_RAY = re.compile(r"\((?:\w{1,60} )?pid=(\d{1,8})(?:, ip=[\w.:]{1,60})?\) ?")
_STAMP = re.compile(
    r"\[?(\d{4}[-/]\d\d[-/]\d\d|\d\d/\d\d/\d{4})[T ](\d\d:\d\d:\d\d)(?:([.,])(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: std(?:out|err) [FP])?(?: |$)"
)
_DMESG_STAMP = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d) (\d{4})")
_KERNEL_STAMP = re.compile(rf"\[{_DMESG_STAMP.pattern}\] ")
_SYSLOG_STAMP = re.compile(r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d ")
_DAEMON = re.compile(r"([\w.-]{1,64}) [\w./@-]{1,64}\[(\d{1,8})\]: ?")
_GLOG = re.compile(r"\[?[IWEF](?:\d{3,4} \d\d:\d\d:\d\d\.\d{1,9})?(?: +(\d{1,8}))? [\w./-]{1,200}:\d{1,6}\] ?")
_LEVEL_AND_PLACE = re.compile(rf"\[{_LEVEL}\|[\w./-]{{1,100}}:\d{{1,6}}\] ?")
_LOGGER_NAME = re.compile(r"\[[A-Za-z][\w.-]{0,30}\] (?=\d{4}-\d\d-\d\d )")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NO_YEAR = re.compile(
    r"(?<!\w)[IWEF](?P<date>\d{3,4}) (?P<time>\d\d:\d\d:\d\d)"
    rf"|^(?P<month>{'|'.join(_MONTHS)}) (?P<day>[ \d]\d) (?P<at>\d\d:\d\d:\d\d)(?!\S)"
)
_A_LEAP_YEAR = 2024
_RECORD = re.compile(rf"(?:[-|\[ ]{{0,3}}|- [\w.:/-]{{1,80}} - ){_LEVEL}")
"""What follows a stamp written by a logger."""
_TASK_BEFORE = re.compile(r"(\d{1,5}): ?(?=\[(?:default|rank)\d)")
_TASK = re.compile(r" {0,5}(\d{1,5}): ?")
_BRACKETED_TASK = re.compile(r"\[(\d{1,5})\] ?")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,62})(?: +\||:) ")

_ONE_TASK_MANY_RANKS = re.compile(rb"\[default\d|torch/distributed/elastic|local_rank: \d")
_LABEL_SHARE = 0.9
"""The share of a log's first lines that must have the label."""
_LAUNCHERS = (b"srun: ", b"slurmstepd: ", b"mpirun", b"mpiexec", b"prterun", b"pdsh@")
"""Launchers' own messages have no label."""


@dataclass(slots=True)
class Prefix:
    """The facts in the prefixes of one line."""

    stream: str = ""
    """Its labels: lines of one process have the same."""
    rank: int | None = None
    local_rank: int | None = None
    group: str | None = None
    pid: int | None = None
    host: str | None = None
    time_s: float | None = None
    is_record: bool = False
    writer: int | None = None
    end: int = 0
    """Where the text begins."""


class Labels:
    """The kind of ambiguous label that precedes the lines of a log.

    A number before a colon by itself means nothing ("12: loss 0.3"); a label precedes nearly all lines and recurs.
    """

    def __init__(self, head: bytes) -> None:
        lines = [
            line.decode("utf-8", "replace")
            for line in head.splitlines()
            if line.strip() and not line.startswith(_LAUNCHERS)
        ]
        self.pattern: re.Pattern[str] | None = None
        for pattern in (_TASK, _BRACKETED_TASK, _HOST):
            found = [match[1] for line in lines if (match := pattern.match(line))]
            recurs = len(found) >= 4 and len(found) >= _LABEL_SHARE * len(lines) and len(found) > 2 * len(set(found))
            # Host names are numbered, unlike levels and names of values.
            if recurs and (pattern is not _HOST or all(re.search(r"\d", label) for label in found)):
                self.pattern = pattern
                break
        self.is_rank = self.pattern in (_TASK, _BRACKETED_TASK) and not _ONE_TASK_MANY_RANKS.search(head)

    def take(self, prefix: Prefix, raw: str) -> None:
        """Read the host or task label of a line into `prefix`, and move its end behind the label.

        `raw` is the whole line. Nothing happens if the log has no such labels.
        """
        if self.pattern is None or not (found := self.pattern.match(raw, prefix.end)):
            return
        prefix.end = found.end()
        if self.pattern is _HOST:
            prefix.host, prefix.stream = found[1], f"host {found[1]} "
        else:
            prefix.stream = f"task{found[1]} "
            prefix.rank = int(found[1]) if self.is_rank else None


def read_prefix(raw: str, labels: Labels, start: int = 0) -> Prefix:
    """Read all prefixes of a line from left to right, beginning at `start`."""
    prefix = Prefix(end=start)
    labels.take(prefix, raw)
    while prefix.end < len(raw) and _one(prefix, raw):
        pass
    return prefix


def _one(prefix: Prefix, raw: str) -> bool:
    """Read the next prefix; return whether there was one."""
    for pattern, use in _BY_FIRST.get(raw[prefix.end], ()):
        if found := pattern.match(raw, prefix.end):
            prefix.end = found.end()
            use(prefix, found)
            return True
    return False


def _rank(prefix: Prefix, found: re.Match[str]) -> None:
    # After its header, the C++ logger counts within the process group; the stream is in what precedes it.
    if prefix.rank is None or not prefix.is_record:
        prefix.rank = int(found[1])
    prefix.stream += "" if prefix.is_record else f"rank{found[1]} "


def _short_rank(prefix: Prefix, found: re.Match[str]) -> None:
    label = int(found[1] or found[2])
    prefix.rank = label if prefix.rank is None else prefix.rank
    prefix.stream += f"rank{label} "


def _task(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.stream += f"task{found[1]} "


def _local_rank(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.local_rank = int(found[1])
    prefix.stream += f"local{found[1]} "


def _group(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.group, prefix.is_record = found[1], True
    # It counts the members of the group; group 0 contains all ranks.
    if prefix.rank is None and found[1] == "0":
        prefix.rank = int(found[2])


def _pod(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.stream += f"{found[1]} "


def _pid(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.pid = int(found[1])
    prefix.stream += f"pid{found[1]} "


def _header(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.is_record = True
    prefix.writer = int(found[1]) if found.re is _GLOG and found[1] else prefix.writer


def _name(_: Prefix, __: re.Match[str]) -> None:
    """Skip a logger's name, which has no facts; its stamp follows."""


def _syslog(prefix: Prefix, found: re.Match[str]) -> None:
    _daemon(prefix, found.string)


def _stamp(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.time_s = _seconds(found[1], found[2], found[4] or "", found[5] or "Z")
    # Python's logging writes a comma before the milliseconds; container stamps are on every line.
    prefix.is_record |= found[3] == "," or bool(_RECORD.match(found.string, found.end()))
    _daemon(prefix, found.string)


def _kernel_stamp(prefix: Prefix, found: re.Match[str]) -> None:
    prefix.time_s = dmesg_seconds(found[0][1:-2])


def dmesg_seconds(stamp: str) -> float | None:
    """Return a time written by `dmesg -T` in seconds since the epoch, read as UTC: `Sat Nov 21 04:01:39 2026`."""
    found = _DMESG_STAMP.fullmatch(stamp)
    if found is None or found[1] not in _MONTHS:
        return None
    return _seconds(f"{found[4]}-{_MONTHS.index(found[1]) + 1:02}-{int(found[2]):02}", found[3], "", "Z")


def stamp_seconds(stamp: str) -> float | None:
    """Return a time in ISO 8601, or of `dmesg -T`, in seconds since the epoch; read as UTC if it has no zone."""
    try:
        moment = dt.datetime.fromisoformat(stamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError):
        return dmesg_seconds(stamp)


def seconds_without_year(line: str) -> float | None:
    """Return the first time in a line that glog or syslog wrote, read as UTC and as of an arbitrary leap year."""
    if not (found := _NO_YEAR.search(line)):
        return None
    if date := found["date"]:
        month, day, time = int(date[:-2]), int(date[-2:]), found["time"]
    else:
        month, day, time = _MONTHS.index(found["month"]) + 1, int(found["day"]), found["at"]
    return _seconds(f"{_A_LEAP_YEAR}-{month:02}-{day:02}", time, "", "Z")


def _daemon(prefix: Prefix, raw: str) -> None:
    """Read `host program[pid]: `, which journald writes after a stamp."""
    if found := _DAEMON.match(raw, prefix.end):
        prefix.end = found.end()
        prefix.host, prefix.pid = found[1], int(found[2])
        prefix.stream += f"host {found[1]} pid{found[2]} "


def _seconds(date: str, time: str, fraction: str, zone: str) -> float | None:
    date = date.replace("/", "-")
    if date[2] == "-":  # month first, as in the United States
        date = f"{date[6:]}-{date[:5]}"
    try:
        moment = dt.datetime.fromisoformat(f"{date}T{time}{zone}")
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


_Use = Callable[[Prefix, re.Match[str]], None]
_BRACKETED: tuple[tuple[re.Pattern[str], _Use], ...] = (
    (_RANK, _rank),
    (_R_LABEL, _short_rank),
    (_MPIRUN, _rank),
    (_ROLE, _local_rank),
    (_GROUP_RANK, _group),
    (_POD, _pod),
    (_GLOG, _header),
    (_LEVEL_AND_PLACE, _header),
    (_STAMP, _stamp),
    (_KERNEL_STAMP, _kernel_stamp),
    (_LOGGER_NAME, _name),
)
_BY_FIRST: dict[str, tuple[tuple[re.Pattern[str], _Use], ...]] = {
    "[": _BRACKETED,
    "(": ((_RAY, _pid),),
    **dict.fromkeys("0123456789", ((_STAMP, _stamp), (_TASK_BEFORE, _task))),
    **dict.fromkeys("IWE", ((_GLOG, _header),)),
    **dict.fromkeys("JMASOND", ((_SYSLOG_STAMP, _syslog),)),
    "F": ((_GLOG, _header), (_SYSLOG_STAMP, _syslog)),
    "R": ((_RANK_WORD, _rank),),
    "r": ((_RANK_WORD, _rank), (_R_LABEL, _short_rank)),
}
"""The readers by the first character of a prefix."""
FIRST_OF_PREFIX = frozenset(_BY_FIRST)
"""A line that begins with another character has no prefix, unless all lines have a label."""
