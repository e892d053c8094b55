"""What a log says about itself: when it begins and ends, until when each rank speaks, and which job it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddx_tools.parsers.logs.log_prefixes import Labels, read_prefix

HEAD_BYTES = 256 << 10
TAIL_BYTES = 64 << 10
"""How much of a log's end is read for each rank's last words."""
_LINE_BYTES = 400
_LIBRARY_LINE = re.compile(r"\[?[IWEF]\d{4} \d\d:\d\d:\d\d\.|ProcessGroup[A-Z]|NCCL (?:INFO|WARN)")
"""Threads of libraries speak on after the program has ended with an exception."""
_STATED = re.compile(
    rb"(?<![\w.-])(?P<name>(?:SLURM_JOB_?ID|PBS_JOBID|LSB_JOBID)|MASTER_ADDR|WORLD_SIZE|world_size)"
    rb"[\"']?[ \t]{0,2}[=:][ \t]{0,2}[\"']?(?P<value>[A-Za-z0-9][\w.-]{0,63})(?![\w.-]| rank=\d)"
)
# The last part is how vLLM (init_distributed_environment in parallel_state.py) states the size of an engine.
_KINDS = {b"MASTER_ADDR": "MASTER_ADDR", b"WORLD_SIZE": "world size", b"world_size": "world size"}
_ANYWHERE = re.compile(r"localhost|127\..*|0\.0\.0\.0|\d{1,3}(?:\.\d{1,3}){3}")
"""Addresses that say nothing: a host may be called by its name in one log and by an address in another."""
_MOST_STATED = 1_000


@dataclass
class LogFacts:
    """Times in seconds since the epoch, on the clock of the log's host; a time without a zone is read as UTC."""

    first_s: float | None = None
    last_s: float | None = None
    spoke_s: dict[int | None, float] = field(default_factory=dict)
    """Per rank, the time of the last dated line of its program, if that is near the end of the log."""
    stated: dict[str, str] = field(default_factory=dict)
    """The job's number, MASTER_ADDR and world size, each if the beginning of the log states one value for it."""

    def take_head(self, head: bytes, labels: Labels) -> None:
        """Read the beginning of the log."""
        self.first_s = next((time_s for _, time_s, _ in _dated(head[:TAIL_BYTES], labels)), None)
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
        """Read the end of the log."""
        for rank, time_s, is_library in _dated(tail, labels):
            self.last_s = max(time_s, self.last_s or time_s)
            if not is_library:
                self.spoke_s[rank] = max(time_s, self.spoke_s.get(rank, time_s))


def _dated(data: bytes, labels: Labels) -> Iterator[tuple[int | None, float, bool]]:
    """(rank, time, whether a library wrote it) of each line with a date."""
    for line in data.split(b"\n"):
        if not any(digit in line[:_LINE_BYTES] for digit in (b":0", b":1", b":2", b":3", b":4", b":5")):
            continue
        raw = line[:_LINE_BYTES].decode("utf-8", "replace")
        prefix = read_prefix(raw, labels)
        if prefix.time_s is not None:
            yield prefix.rank, prefix.time_s, bool(_LIBRARY_LINE.search(raw))
