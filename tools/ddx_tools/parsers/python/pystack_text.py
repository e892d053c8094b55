"""Reads the stacks that pystack prints: `pystack core CORE` and `pystack remote PID` (pystack 1.7).

    Using executable found in the core file: /srv/venv/bin/python

    Core file information:                                      these lines for a core only
    state: R zombie: True niceness: 10
    pid: 36 ppid: 30 sid: 36
    uid: 0 gid: 0 pgrp: 36
    executable: python arguments: /srv/venv/bin/python -u train.py      80 bytes of the arguments

    The process died due receiving signal SIGABRT [sent by pid 7]
    Traceback for thread 36 (name) [Has the GIL] (most recent call last):
        (Python) File "/srv/job/train.py", line 31, in decode
            ctypes.string_at(64)                                if the file exists where pystack ran
        (C) File "./stdlib/abort.c", line 79, in abort (libc.so.6)      with --native: innermost among the others
          Arguments: / Locals:                                  with --locals: these and the values are skipped

or  The process died due a segmentation fault accessing address: 0x40          of SIGBUS and others as well

Threads come newest first, frames outermost first. A core that gdb wrote of a living process has the signal that stopped
it, SIGSTOP or SIGTRAP.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.model.stack_frame import Frame
from ddx_tools.parsers.python.pyspy_json import ThreadStack
from ddx_tools.parsers.python.pyspy_text import RANK_ABOVE

_HEAD = re.compile(r"(?:Using executable found in the core file: .{0,2000}|Core file information:)")
_PROCESS = re.compile(r"pid: (\d{1,10}) ppid: (\d{1,10}) sid: \d{1,10}")
_DIED = re.compile(
    r"The process died due (?:receiving signal (SIG[A-Z0-9]{1,12})(?: sent by pid (\d{1,10}))?"
    r"|a segmentation fault accessing address: 0x[0-9a-f]{1,16})"
)
_THREAD = re.compile(r"Traceback for thread (\d{1,19})(?: \((.{0,100})\))? \[(.{0,200})\] \(most recent call last\):")
_PYTHON = re.compile(r" {4}\(Python\) File \"(.{1,1000})\", line (\d{1,9}), in (.{1,300})")
_C = re.compile(r" {4}\(C\) File \".{0,1000}\", line \d{1,9}, in (.{1,2000}) \(([^()\n]{1,600})\)")
_CODE = re.compile(r" {8}(\S.{0,500})")
_HAS_GIL = "Has the GIL"
_KILLING = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGXCPU", "SIGXFSZ"})
"""The signals that end a process with a core (signal(7)), without SIGTRAP, with which debuggers stop one."""
_RANK_OPTION = re.compile(r"\s--(?:global[-_])?rank[= ](\d{1,7})(?=\s|$)")
_LINES_ABOVE, _HEAD_LINES, _SHOWN = 3, 12, 500
_PROCESSES_LIMIT, _THREADS_LIMIT, _FRAMES_LIMIT = 4_000, 2_000, 1_000


@dataclass(frozen=True)
class PystackProcess:
    """One process: its threads and, from a core, how it ended."""

    pid: int
    """0 if the text does not say."""
    threads: tuple[ThreadStack, ...]
    died: bool = False
    signal: str | None = None
    """The signal that ended it; None also for a fault at an address, which is SIGSEGV, SIGBUS or another one."""
    sent_by: int | None = None
    """The pid of another process that sent the signal."""
    says: str = ""
    """The line that names the signal."""
    says_at: int = 0
    """The number of that line, from 1."""

    @property
    def where(self) -> ThreadStack | None:
        """The thread that ended it: the one that calls `abort`, else the one with the GIL, else the main thread."""
        order = (
            lambda thread: any(frame.function == "abort" for frame in thread.frames),
            lambda thread: thread.owns_gil,
            lambda thread: thread.is_main,
        )
        return next((thread for wanted in order for thread in self.threads if wanted(thread)), None)


def is_pystack(text: str) -> bool:
    """Return whether a text has stacks, or the end of a process, as pystack prints them."""
    lines = [line.rstrip() for line in text[:100_000].split("\n")]
    return any(map(_THREAD.fullmatch, lines)) or (any(map(_HEAD.fullmatch, lines)) and any(map(_DIED.fullmatch, lines)))


def parse_pystack(text: str) -> list[PystackProcess]:
    """Return the processes of a text, each with its threads, frames innermost first; empty for a text without any."""
    lines = _lines_of(text)
    bounds = [*_starts(lines)[:_PROCESSES_LIMIT], len(lines)]
    found = [_process(lines, begin, end) for begin, end in itertools.pairwise(bounds)]
    return [process for process in found if process.threads or process.says]


def pystack_by_rank(text: str) -> list[tuple[int | None, str]]:
    """Return the dumps in a text, each with its rank if the lines above it or its arguments name one.

    Where some are named, those that follow without a rank are other processes of the same rank.
    """
    lines = _lines_of(text)
    starts = _starts(lines)
    ranks = [_rank_of(lines, at, end) for at, end in itertools.pairwise([*starts, len(lines)])]
    named = [(at, rank) for at, rank in zip(starts, ranks, strict=True) if rank is not None]
    cores = [(at, None) for at in starts if _HEAD.fullmatch(lines[at])]
    cut: Sequence[tuple[int, int | None]] = named or cores or [(0, None)]
    whole = text.split("\n")
    bounds = [0, *(at for at, _ in cut[1:]), len(whole)]
    parts = ["".join(f"{line}\n" for line in whole[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return [(rank, part) for (_, rank), part in zip(cut, parts, strict=True)]


def _lines_of(text: str) -> list[str]:
    return [line.rstrip("\r") for line in text.split("\n")]


def _rank_of(lines: Sequence[str], at: int, end: int) -> int | None:
    """The rank that the lines above a dump name, or its process's arguments."""
    above = " ".join(line for line in lines[max(0, at - _LINES_ABOVE) : at] if not line[:1].isspace())
    arguments = (line for line in lines[at : min(end, at + _HEAD_LINES)] if line.startswith("executable: "))
    named = RANK_ABOVE.findall(above)[-1:] or [rank for line in arguments for rank in _RANK_OPTION.findall(line)]
    return int(named[0]) if named else None


def _starts(lines: Sequence[str]) -> list[int]:
    """The lines where processes begin: at a core's head, or where a thread comes a second time."""
    starts: list[int] = []
    tids: set[str] = set()
    named = False
    for at, line in enumerate(lines):
        if _HEAD.fullmatch(line):
            names = line.startswith("Using")
            if names or not named:
                starts.append(at)
                tids = set()
            named = names
        elif thread := _THREAD.fullmatch(line):
            if not starts or thread[1] in tids:
                starts.append(at)
                tids = set()
            tids.add(thread[1])
            named = False
    return starts


def _process(lines: Sequence[str], begin: int, end: int) -> PystackProcess:
    """The process in some lines."""
    heads = [at for at in range(begin, end) if _THREAD.fullmatch(lines[at])][:_THREADS_LIMIT]
    facts = _head_facts(lines, begin, heads[0] if heads else end)
    pid = facts.pop("pid", 0)
    stacks = [(lines[at], _frames(lines, at + 1, stop)) for at, stop in itertools.pairwise([*heads, end])]
    tids = [int(thread[1]) for head, _ in stacks if (thread := _THREAD.fullmatch(head))]
    # On Linux, the main thread has the pid as its id.
    program = (tid for tid, (_, frames) in zip(tids, stacks, strict=True) if _is_program(frames))
    pid = pid or next(program, 0)
    threads = tuple(_thread(pid, head, frames) for head, frames in stacks)
    return PystackProcess(pid, threads, **facts)


def _head_facts(lines: Sequence[str], begin: int, end: int) -> dict[str, Any]:
    """The fields of a process that the head of its core gives."""
    facts: dict[str, Any] = {}
    for at in range(begin, min(end, begin + _HEAD_LINES)):
        if ids := _PROCESS.fullmatch(lines[at]):
            facts["pid"] = int(ids[1])
        elif died := _DIED.fullmatch(lines[at]):
            facts |= {"says": lines[at], "says_at": at + 1, "died": died[1] is None or died[1] in _KILLING}
            if died[1] in _KILLING:
                sender = int(died[2] or 0)
                facts |= {"signal": died[1], "sent_by": sender if sender not in (0, facts.get("pid")) else None}
    return facts


def _is_program(frames: Sequence[Frame]) -> bool:
    """Whether the outermost Python frame of a stack is the program's own."""
    python = [frame for frame in frames if frame.line]
    return bool(python) and python[-1].function == "<module>"


def _thread(pid: int, head: str, frames: tuple[Frame, ...]) -> ThreadStack:
    thread = _THREAD.fullmatch(head)
    assert thread is not None
    tid, name = int(thread[1]), thread[2] or ""
    return ThreadStack(pid, tid, "MainThread" if tid == pid else name, False, _HAS_GIL in thread[3], frames)


def _frames(lines: Sequence[str], begin: int, end: int) -> tuple[Frame, ...]:
    """The frames of one thread, innermost first."""
    found: list[Frame] = []
    for at in range(begin, end):
        line = lines[at]
        if len(found) >= _FRAMES_LIMIT:
            break
        if python := _PYTHON.fullmatch(line):
            below = _CODE.fullmatch(lines[at + 1]) if at + 1 < end else None
            code = below[1] if below else ""
            found.append(Frame(python[1], int(python[2]), python[3], at=at + 1, shown=line.strip()[:_SHOWN], code=code))
        elif native := _C.fullmatch(line):
            name = _without_parameters(native[1].removesuffix(" (inlined)"))
            found.append(Frame(native[2], 0, name[:_SHOWN], at=at + 1, shown=line.strip()[:_SHOWN]))
    return tuple(reversed(found))


def _without_parameters(symbol: str) -> str:
    """A C++ function without its list of parameters: `gloo::allreduce` for `gloo::allreduce(gloo::Options&)`."""
    bare = symbol.removesuffix(" const")
    if not bare.endswith(")"):
        return symbol
    depth = 0
    for at in range(len(bare) - 1, 0, -1):
        depth += (bare[at] == ")") - (bare[at] == "(")
        if depth == 0:
            return bare[:at]
    return symbol
