"""The process snapshot (see `ddx_tools.sources.hosts.processes`) as a tree that can be queried."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.process import Process
from ddx_tools.parsers.machine.host_text import HostFact, TextLine


class ProcessTable:
    """Processes by pid, with their children."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        rows = snapshot.get("processes")
        if not isinstance(rows, list):
            raise UnreadableInput("not a process snapshot: it has no list of processes")
        self.host = str(snapshot.get("host") or "")
        self.now = snapshot.get("now")
        self.processes = {process.pid: process for process in map(_process, rows)}
        self._children: dict[int, list[Process]] = {}
        for process in sorted(self.processes.values(), key=lambda process: process.pid):
            self._children.setdefault(process.ppid, []).append(process)

    def get(self, pid: int) -> Process | None:
        """Return the process with this pid; None if the snapshot lacks it."""
        return self.processes.get(pid)

    def is_fork(self, process: Process) -> bool:
        """Return whether a process has its parent's command line: then it was forked and runs no program of its own."""
        parent = self.processes.get(process.ppid)
        return bool(parent and process.command and parent.command == process.command)

    def children(self, pid: int) -> list[Process]:
        """Return the direct children, sorted by pid."""
        return self._children.get(pid, [])

    def ancestors(self, process: Process) -> Iterator[Process]:
        """Yield parent, grandparent, … as far as the snapshot has them."""
        seen = {process.pid}
        while (parent := self.processes.get(process.ppid)) and parent.pid not in seen:
            yield parent
            seen.add(parent.pid)
            process = parent

    def descendants(self, pid: int) -> Iterator[Process]:
        """Yield all descendants, parents before children."""
        waiting, seen = list(self.children(pid)), {pid}
        while waiting:
            process = waiting.pop(0)
            if process.pid not in seen:
                seen.add(process.pid)
                yield process
                waiting.extend(self.children(process.pid))


def _process(row: Any) -> Process:
    if not isinstance(row, dict) or not isinstance(row.get("pid"), int):
        raise UnreadableInput("not a process snapshot: a process has no pid")
    env = row.get("env")
    return Process(
        pid=row["pid"],
        ppid=row["ppid"] if isinstance(row.get("ppid"), int) else 0,
        name=str(row.get("name") or ""),
        command=" ".join(str(argument) for argument in row.get("cmdline") or []),
        exe=str(row.get("exe") or ""),
        state=row.get("state"),
        env={str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {},
        readable=bool(row.get("readable")),
        tcp=tuple((pair[0], pair[1]) for pair in row.get("tcp") or []),
        row=row,
    )


# --- kernel readings of processes, as pasted beside a stack: `ps` with states, and files in /proc
#     $ ps -eo pid,ppid,stat,wchan:28,pcpu,etime,args
#      551204  551160 Dl   folio_wait_bit_common        66.2    19:40:11 python -u train.py
#     $ cat /proc/551204/wchan; echo
#     pipe_write
#     $ sudo cat /proc/551204/stack
#     [<0>] filemap_fault+0x5c6/0xb10
# (procps-ng 3.3 and 4.0; Linux 3.10 to 6.x, fs/proc/base.c.) The columns of `ps` come from its heading, or from the
# command line above it if grep removed the heading.

NEEDLES = ("PID ", "ps -", "ps a", "/proc/")
_HEADING = re.compile(r"^\s{0,40}(?=.{0,200}\bPID\b)(?=.{0,200}\b(?:STAT|S|WCHAN)\b)[A-Z%+ ]{3,300}$")
_COMMAND = re.compile(
    r"\bps\s[^|;#]{0,80}?-?o ?(?P<columns>[a-z%_+]{1,20}(?::\d{1,3})?(?:=|,[a-z%_+]{1,20}(?::\d{1,3})?){0,24})"
)
_OF_PROC = re.compile(r"/proc/(?P<pid>\d{1,10})/(?:task/\d{1,10}/)?(?P<file>wchan|stack|status|stat)\b")
_STATE = re.compile(r"[RSDTtZXIKWP][<NLsl+]{0,6}")
_WORD = re.compile(r"[A-Za-z_][\w.]{0,80}")
_KERNEL_FRAME = re.compile(r"\s{0,8}\[<[0-9a-f]{1,16}>\] (?P<function>[A-Za-z_][\w.]{0,80})")
_STATUS_STATE = re.compile(r"State:\s{1,4}(?P<state>[A-Za-z])\b")
_BEHIND_PROMPT = 4
"""The maximum number of lines between a command and the start of its output."""
_LIMIT, _LINE_LIMIT = 20_000, 600
_HELD = ("T", "t", "D")
_KERNEL_THREAD = re.compile(r"\s\[[^\[\]\s]{1,60}\]$")
_PROGRAM = re.compile(r"\S{0,200}python[\d.]{0,6}\s.{0,400}$")
"""The command line of a Python program at the end of a row: ranks of one job on one host have the same one."""
_NAMES = {"s": "state", "stat": "state", "wname": "wchan", "lwp": "tid"}


@dataclass(frozen=True)
class ProcessFacts:
    """One process as the kernel saw it; unknown values are None."""

    pid: int
    state: str | None = None
    """The kernel's state letter: R, S, D, T, …"""
    wchan: str | None = None
    """The kernel function that the process sleeps in."""

    def over(self, earlier: ProcessFacts | None) -> ProcessFacts:
        """Return these facts, with missing values filled in from earlier ones."""
        if earlier is None:
            return self
        return ProcessFacts(self.pid, self.state or earlier.state, self.wchan or earlier.wchan)


def parse_process_text(text: str) -> dict[int, ProcessFacts]:
    """Map each pid in pasted `ps` output and `/proc` files to its state and kernel wait function.

    Any text is accepted. If a process occurs several times, the last known values count.
    """
    found: dict[int, ProcessFacts] = {}
    for _, facts in _facts(text.splitlines()[:_LIMIT]):
        found[facts.pid] = facts.over(found.get(facts.pid))
    return found


def read_held_processes(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield processes last seen stopped or in an uninterruptible call (`held_process`), without kernel threads.

    `readings`: how many last readings in a row show it in that state and kernel function; `alike`: how many of the
    listed processes run the same program with the same arguments.
    """
    last: dict[tuple[str | None, int], tuple[TextLine, ProcessFacts, int]] = {}
    peers: dict[str, set[int]] = {}
    for number, facts in _facts([line.text for line in lines[:_LIMIT]]):
        line = lines[number]
        if _KERNEL_THREAD.search(line.text):
            continue
        if program := _PROGRAM.search(line.text):
            peers.setdefault(program[0], set()).add(facts.pid)
        place, known, readings = last.get((line.host, facts.pid), (line, None, 0))
        if facts.state:
            goes_on = known is not None and known.state == facts.state and known.wchan == facts.wchan
            place, readings = line, readings + 1 if goes_on else 1
        last[line.host, facts.pid] = (place, facts.over(known), readings)
    for (_, pid), (line, facts, readings) in last.items():
        if facts.state in _HELD:
            program = _PROGRAM.search(line.text)
            alike = len(peers[program[0]]) if program else 0
            values = {"state": facts.state, "wchan": facts.wchan, "readings": readings, "alike": alike}
            yield HostFact("held_process", str(pid), line, values)


def _facts(lines: Sequence[str]) -> Iterator[tuple[int, ProcessFacts]]:
    """The facts, each with its line's index."""
    columns: list[str] = []
    asked: tuple[int, str, int] | None = None
    for number, line in enumerate(lines):
        line = line[:_LINE_LIMIT]
        if of_proc := _OF_PROC.search(line):
            asked = (int(of_proc["pid"]), of_proc["file"], number)
            continue
        if asked and number - asked[2] > _BEHIND_PROMPT:
            asked = None
        if asked and (facts := _of_proc(asked[0], asked[1], line)):
            yield number, facts
            asked = None
        elif command := _COMMAND.search(line):
            columns = [name.split(":")[0].strip("=") for name in command["columns"].split(",")]
        elif _HEADING.match(line):
            columns = line.lower().split()
        elif columns and (facts := _of_table(columns, line)):
            yield number, facts


def _of_proc(pid: int, file: str, line: str) -> ProcessFacts | None:
    words = line.strip()
    if file == "stack":
        frame = _KERNEL_FRAME.match(line)
        return ProcessFacts(pid, wchan=frame["function"]) if frame else None
    if file == "wchan":
        return ProcessFacts(pid, wchan=words) if _WORD.fullmatch(words) else None
    state = _STATUS_STATE.search(line)
    return ProcessFacts(pid, state=state["state"]) if state else None


def _of_table(columns: Sequence[str], line: str) -> ProcessFacts | None:
    """A row of ps; only the command at the end may contain blanks."""
    told = dict(zip((_NAMES.get(name, name) for name in columns), line.split(), strict=False))
    pid, state, wchan = told.get("pid", ""), told.get("state", ""), told.get("wchan", "")
    if not pid.isdecimal() or len(pid) > 10 or not (state or wchan) or (state and not _STATE.fullmatch(state)):
        return None
    if told.get("tid", pid) != pid:  # a side thread does not show where the program is
        return None
    return ProcessFacts(int(pid), state[:1] or None, wchan if _WORD.fullmatch(wchan) else None)
