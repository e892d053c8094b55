"""What a log says about itself: when it begins and ends, until when each rank speaks, and which job it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ddx_tools.analysis.ranks.job_hosts import HostList, host_lists
from ddx_tools.parsers.logs.log_prefixes import Labels, read_prefix, seconds_without_year
from ddx_tools.parsers.machine.kernel_log import is_kernel_log

HEAD_BYTES = 256 << 10
TAIL_BYTES = 64 << 10
"""How much of a log's end is read for each rank's last words."""
_LINE_BYTES = 400
_LIBRARY_LINE = re.compile(r"\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d\.|ProcessGroup[A-Z]|NCCL (?:INFO|WARN)")
"""Threads of libraries speak on after the program has ended with an exception."""
_STATED = re.compile(
    rb"(?<![\w.-])(?P<name>(?:SLURM_JOB_?ID|PBS_JOBID|LSB_JOBID)|MASTER_ADDR|WORLD_SIZE|world_size)"
    rb"[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?(?P<value>[A-Za-z0-9][\w.-]{0,63})"
    rb"(?![\w.-]| rank=\d{1,6} local_rank=\d{1,6} (?:distributed_init_method|backend)=)"
)
# The last part is how vLLM (init_distributed_environment in parallel_state.py) states the size of an engine.
_KINDS = {b"MASTER_ADDR": "MASTER_ADDR", b"WORLD_SIZE": "world size", b"world_size": "world size"}
_ANYWHERE = re.compile(r"localhost|127\..*|0\.0\.0\.0|\d{1,3}(?:\.\d{1,3}){3}")
"""Addresses that say nothing: a host may be called by its name in one log and by an address in another."""
_MOST_STATED = 1_000
_JOINED = re.compile(
    rb" rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) [^\n]{0,200}?commId (?P<id>0x[0-9a-f]{1,16}) - Init COMPLETE"
)
"""NCCL's line about a communicator that is complete: all its members take part in making it."""


@dataclass(frozen=True)
class JoinedCommunicator:
    """A communicator of NCCL that a log names, and the ranks in it that made it."""

    nranks: int
    ranks: frozenset[int]


@dataclass
class LogFacts:
    """Times in seconds since the epoch, on the clock of the log's host; a time without a zone is read as UTC."""

    first_s: float | None = None
    last_s: float | None = None
    first_in_year_s: float | None = None
    """The first time, if its line has no year: as of an arbitrary one."""
    last_in_year_s: float | None = None
    is_kernel_log: bool = False
    """Whether the kernel wrote it: then its times are not those of a job."""
    spoke_s: dict[int | None, float] = field(default_factory=dict)
    """Per rank, the time of the last dated line of its program, if that is near the end of the log."""
    stated: dict[str, str] = field(default_factory=dict)
    """The job's number, MASTER_ADDR and world size, each if the beginning of the log states one value for it."""
    communicators: Mapping[str, JoinedCommunicator] = field(default_factory=dict)
    """By id, those in the beginning of the log."""
    hosts: list[HostList] = field(default_factory=list)
    """The hosts that the log lists, if it is short enough to be read for them as a whole."""

    def take_head(self, head: bytes, labels: Labels) -> None:
        """Take the facts that the beginning of the log states.

        These are its first time, the job's number, MASTER_ADDR and world size, NCCL's communicators, and lists of
        hosts.
        """
        first = next(_dated(head[:TAIL_BYTES], labels), None)
        if first is not None:
            self.first_s, self.first_in_year_s = first.time_s, first.in_year_s
        self.is_kernel_log = is_kernel_log(head[:TAIL_BYTES])
        self.communicators = _communicators(head[:HEAD_BYTES])
        self.hosts = host_lists(head) if len(head) < HEAD_BYTES else []
        values: dict[str, set[str]] = {}
        for count, found in enumerate(_STATED.finditer(head[:HEAD_BYTES])):
            if count >= _MOST_STATED:
                break
            kind, value = _KINDS.get(found["name"], "job"), found["value"].decode("ascii", "replace").rstrip(".-")
            value = value if value.replace(".", "").isdigit() else value.partition(".")[0]
            if (kind == "MASTER_ADDR" and not _ANYWHERE.fullmatch(value)) or (
                kind != "MASTER_ADDR" and value.isdigit()
            ):
                values.setdefault(kind, set()).add(value)
        self.stated = {kind: one for kind, (one, *more) in values.items() if not more}

    def take_tail(self, tail: bytes, labels: Labels) -> None:
        """Take the last time in the log and, for each rank, the time of its program's last line."""
        for line in _dated(tail, labels):
            if line.time_s is None:
                self.last_in_year_s = line.in_year_s
                continue
            self.last_s = max(line.time_s, self.last_s or line.time_s)
            if not line.is_library:
                self.spoke_s[line.rank] = max(line.time_s, self.spoke_s.get(line.rank, line.time_s))


def _communicators(head: bytes) -> dict[str, JoinedCommunicator]:
    found: dict[str, JoinedCommunicator] = {}
    for joined in islice(_JOINED.finditer(head), _MOST_STATED):
        name, nranks = joined["id"].decode("ascii"), int(joined["nranks"])
        known = found.get(name, JoinedCommunicator(nranks, frozenset()))
        found[name] = JoinedCommunicator(nranks, known.ranks | {int(joined["rank"])})
    return found


@dataclass(frozen=True)
class _Dated:
    """A line with a date, which has a year (`time_s`) or none (`in_year_s`)."""

    rank: int | None
    time_s: float | None
    in_year_s: float | None
    is_library: bool


def _dated(data: bytes, labels: Labels) -> Iterator[_Dated]:
    for line in data.split(b"\n"):
        if not any(digit in line[:_LINE_BYTES] for digit in (b":0", b":1", b":2", b":3", b":4", b":5")):
            continue
        raw = line[:_LINE_BYTES].decode("utf-8", "replace")
        prefix = read_prefix(raw, labels)
        in_year_s = seconds_without_year(raw) if prefix.time_s is None else None
        if prefix.time_s is not None or in_year_s is not None:
            yield _Dated(prefix.rank, prefix.time_s, in_year_s, bool(_LIBRARY_LINE.search(raw)))
