"""Reads pasted text dumps of py-spy: `py-spy dump --pid PID [--subprocesses]` (py-spy 0.3 and 0.4).

    Process 4242: /usr/bin/python3 -u train.py
    Python v3.11.7 (/usr/bin/python3.11)

    Thread 4242 (idle): "MainThread"
        wait (threading.py:324)
        train_step (train.py:37)

File names are shortened from their package root unless `--full-filenames` was given. The dump of several
processes is one such block after the other. With `--native`, library frames without a line appear among them:
`pthread_mutex_lock (libc.so.6)`. Prompts and remarks between blocks and after frames do no harm. If the head was cut
off, a main thread begins the next process.

`faulthandler` output from a live process (`dump_traceback_later`, a registered signal) is also read; there the main
thread comes last. For its output from a crashing process, see `fatal_stack`.

    Timeout (0:20:00)!
    Thread 0x00007f5e3b7fe740 (most recent call first):
      File "/ws/train.py", line 37 in train_step
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ddx_tools.model.stack_frame import Frame
from ddx_tools.parsers.python.pyspy_json import ThreadStack

_PROCESS = re.compile(
    r"^(?:Process (\d{1,10}):|[#$ ]{0,4}(?:sudo )?py-spy dump .{0,80}?(?:--pid|-p)[= ](\d{1,10})) ?(.{0,2000})$"
)
"""The head of a dump, or the command that took it, which remains if somebody cut out single threads."""
_THREAD = re.compile(r"^Thread (0x[0-9a-fA-F]{1,16}|\d{1,19}) \(([a-z+]{1,40})\)(?:: \"(.{0,200})\")?$")
_MAIN = "MainThread"
_FRAME = re.compile(
    r"^(?: {2,12}|\t)(\S.{0,400}?) \(([^()\n]{1,600}?)(?::(?:(\d{1,9})|[.?…]{1,3}))?\)(?:\s+(?:#|//|<-).*)?$"
)
_FAULT_THREAD = re.compile(
    r"^(?:Current thread|Thread) (0x[0-9a-f]{1,16})(?: \[([^\]]{0,100})\])? \(most recent call first\):$"
)
_FAULT_FRAME = re.compile(r"^  (File \"([^\"]{1,1000})\", line (\d{1,9}) in (.{1,300}))$")
_NO_FRAMES = ("  <no Python frame>", "  ...")
"""Lines for a thread without Python frames, or with omitted frames: they do not end the thread (CPython's
traceback.c)."""
_DIES = "Fatal Python error: "
RANK_ABOVE = re.compile(r"(?<!local)(?<!local[-_ ])rank[-_ :=#]{0,3}(\d{1,7})\b(?! of\b)", re.I)
"""Text above a dump that names its rank: `rank 3:`, `==> rank3.txt <==`, `$ py-spy dump --pid 4242 # rank 3`."""
_LOCAL_RANK_ABOVE = re.compile(r"\blocal[-_ ]?rank[-_ :=#]{0,3}(\d{1,7})\b", re.I)
_RANK_OPTION = re.compile(
    r"(?:^|\s)(?:--(?:global[-_])?rank[= ]|[#(] ?(?:global )?rank[ =:#]{0,3})(\d{1,7})(?=\s|[),;]|$)"
)
LOCAL_RANK_OPTION = re.compile(r"(?:^|\s)--local[-_]rank[= ](\d{1,7})(?=\s|$)")
_LINES_ABOVE = 3
_PROCESSES_LIMIT, _THREADS_LIMIT, _FRAMES_LIMIT = 4_000, 2_000, 1_000


def looks_like_pyspy_text(text: str) -> bool:
    """Return whether a text is a py-spy dump: it has a main thread or, after a process head, any thread."""
    head = text[:100_000].splitlines()
    threads = [thread for line in head if (thread := _THREAD.match(line))]
    if any(thread[3] == _MAIN for thread in threads) or (threads and any(map(_PROCESS.match, head))):
        return True
    return _DIES not in text and any(map(_FAULT_THREAD.match, head))


def parts_by_rank(text: str) -> list[tuple[int | None, str]]:
    """Return the dumps in a text, split where another rank's process begins, each with its rank if known.

    The rank comes from the lines above it or the command line. Following dumps without a rank are the same rank's other
    processes. Local ranks count if no others are given: then the processes are on one host.
    """
    lines = text.splitlines(keepends=True)
    starts = _ranks_told(lines, RANK_ABOVE)
    if not starts:
        starts = _ranks_told(lines, _LOCAL_RANK_ABOVE)
        starts = starts if len({rank for _, rank in starts}) == len(starts) > 1 else []
    if not starts:
        return [(None, text)]
    bounds = [0, *(at for at, _ in starts[1:]), len(lines)]
    cut = ["".join(lines[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return [(rank, part) for (_, rank), part in zip(starts, cut, strict=True)]


def commands_of(text: str) -> dict[int, str]:
    """The command lines of the dumped processes by pid, as py-spy prints them."""
    found = (_PROCESS.match(line.rstrip()) for line in text.splitlines() if line.startswith("Process "))
    return {int(process[1]): process[3].strip() for process in found if process and process[1]}


def _ranks_told(lines: list[str], rank_above: re.Pattern[str]) -> list[tuple[int, int]]:
    """The lines where a rank's process begins, with the rank."""
    starts: list[tuple[int, int]] = []
    above, main_seen, in_block = 0, True, False
    for at, line in enumerate(lines):
        process, thread = _PROCESS.match(line.rstrip()), _THREAD.match(line.rstrip())
        fault = _FAULT_THREAD.match(line.rstrip())
        headless = thread[3] == _MAIN and main_seen if thread else fault is not None and not in_block
        in_block = fault is not None or (in_block and (not line.strip() or line[:1].isspace()))
        if process or headless:
            words = "".join(lines[max(above, at - _LINES_ABOVE) : at])
            told = rank_above.findall(words)[-1:] + (_RANK_OPTION.findall(process[3]) if process else [])
            if told:
                starts.append((at, int(told[0])))
        main_seen = not process and (main_seen or (thread is not None and thread[3] == _MAIN))
        if line[:1].isspace() or thread or fault or process:
            above = at + 1
    return starts


def parse_pyspy_text(text: str) -> list[ThreadStack]:
    """Return the threads of all processes in a dump; empty for a text without any."""
    return [
        ThreadStack(pid, tid, name, "active" in flags, "gil" in flags, tuple(frames))
        for pid, tid, name, flags, frames in _threads(text)
    ]


def _threads(text: str) -> Iterator[tuple[int, int, str, str, list[Frame]]]:
    pid = threads = processes = 0
    current: tuple[int, int, str, str, list[Frame]] | None = None
    at, main_seen, is_fault = 1, True, False
    dies = _DIES in text
    for whole in text.splitlines(keepends=True):
        (line,) = whole.splitlines()
        number, at = at, at + whole.count("\n")
        if frame := _FRAME.match(line):
            if current and len(current[4]) < _FRAMES_LIMIT:
                current[4].append(Frame(frame[2], int(frame[3] or 0), frame[1], at=number))
        elif frame := _FAULT_FRAME.match(line):
            if current and is_fault and len(current[4]) < _FRAMES_LIMIT:
                current[4].append(Frame(frame[2], int(frame[3]), frame[4], at=number, shown=frame[1]))
        elif process := _PROCESS.match(line):
            if current:
                yield current
                current = None
            pid, processes, threads = int(process[1] or process[2]), processes + 1, 0
            main_seen = is_fault = False
        elif (thread := _THREAD.match(line)) and threads < _THREADS_LIMIT and processes <= _PROCESSES_LIMIT:
            if current:
                yield current
            if thread[3] == _MAIN and main_seen:
                # On Linux, the main thread has the pid as its id; a pthread handle does not show it.
                pid, processes, threads = int(thread[1]) if thread[1].isdigit() else 0, processes + 1, 0
            main_seen = main_seen or thread[3] == _MAIN
            threads, is_fault = threads + 1, False
            current = (pid, int(thread[1], 0), thread[3] or "", thread[2], [])
        elif not dies and threads < _THREADS_LIMIT and (fault := _FAULT_THREAD.match(line)):
            if current:
                yield current
            threads, is_fault = threads + 1, True
            current = (pid, int(fault[1], 0), fault[2] or "", "idle", [])
        elif current and is_fault and line.strip() and line not in _NO_FRAMES:
            yield (*current[:2], _MAIN, *current[3:])
            current = None
    if current:
        yield (*current[:2], _MAIN, *current[3:]) if is_fault else current
