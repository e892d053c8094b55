"""Raw dumps, kernel readings and program texts of one host → rows of the evidence store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import (
    ADVANCE,
    AFTER,
    BEFORE,
    CHILD,
    COUNTERS,
    LOCKS,
    NATIVE,
    OUTPUT,
    SOURCE,
    STACK,
    THREADS,
    UNREAD,
)
from ddx_tools.analysis.program.python_source import PythonSource
from ddx_tools.evidence.schema import as_row
from ddx_tools.knowledge.frame_classes import Activity, KernelView, frame_rules
from ddx_tools.knowledge.phases import phase_of
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.grouping import gathered
from ddx_tools.model.stack_frame import Frame
from ddx_tools.model.user_frames import is_program_file
from ddx_tools.parsers.logs.progress import parse_progress
from ddx_tools.parsers.logs.step_lines import counted_work, step_facts
from ddx_tools.parsers.machine.file_locks import parse_file_locks
from ddx_tools.parsers.plain_json import LARGEST, read_object, whole
from ddx_tools.parsers.python.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.probes.stacks.core_deaths import death_rows
from ddx_tools.probes.stacks.dump_files import DEAD, read_dump
from ddx_tools.sources.raw import Raw, RawItem, Rows

_SWITCHES_OF_A_DUMP = 2
_CPU_NS_OF_A_DUMP = 1_000_000


@lru_cache(maxsize=64)
def _parsed(text: str) -> PythonSource:
    """Parse a program text once for all hosts, which run the same program."""
    return PythonSource(text)


@lru_cache(maxsize=4096)
def _qualified(text: str, line: int, function: str) -> str:
    return _parsed(text).qualified(line, function)


@dataclass
class _Texts:
    """Program texts by file name, parsed when first asked for."""

    raw: dict[str, str]

    def of(self, file: str) -> PythonSource | None:
        return _parsed(self.raw[file]) if file in self.raw else None

    def line(self, frame: Frame) -> str | None:
        text = self.of(frame.file)
        return text.line_text(frame.line) if text else None

    def qualified(self, frame: Frame) -> str:
        """Return the function name with its class, from py-spy (`self`) or else from the program text."""
        text = self.raw.get(frame.file)
        if text is None or "." in frame.function:
            return frame.function
        return _qualified(text, frame.line, frame.function)


@dataclass(frozen=True)
class KernelReading(KernelView):
    """The kernel's view of one thread at one moment."""

    switches: int | None = None
    cpu_ns: int | None = None
    blocked_s: float | None = None

    def ran_since(self, earlier: KernelReading) -> bool | None:
        """Whether the thread made progress after an earlier reading; None if the kernel does not say.

        Being dumped wakes a thread once or costs it a little CPU time: that does not count as progress.
        """
        switched = self.switched_since(earlier)
        return switched or (
            None if switched is None else (self.cpu_ns or 0) - (earlier.cpu_ns or 0) > _CPU_NS_OF_A_DUMP
        )

    def switched_since(self, earlier: KernelReading) -> bool | None:
        """Whether the thread slept and woke between two readings; None if the kernel does not say."""
        wakes = self.wakes_since(earlier)
        return None if wakes is None else wakes > _SWITCHES_OF_A_DUMP

    def wakes_since(self, earlier: KernelReading) -> int | None:
        """How often the thread slept and woke between two readings; None if the kernel does not say."""
        if self.switches is None or earlier.switches is None:
            return None
        return self.switches - earlier.switches


def stack_rows(raw: Raw) -> Rows:
    """Return the rows of `stack_threads`, `stack_frames`, `sources`, `unread`, `outputs`, `file_locks`,
    `wait_counters` and, for dead processes, `log_events`."""
    texts = _Texts({i.facts["file"]: i.data.decode("utf-8", "replace") for i in raw.of(SOURCE)})
    readings, native = readings_by_look(raw), native_frames(raw)
    rows: Rows = {"stack_threads": [], "stack_frames": [], "sources": []}
    for item in raw.of(STACK):
        try:
            threads = read_dump(item.data)
        except UnreadableInput as error:
            raw.problems.append(f"{item.source}: {error.message}")
            continue
        program = _program_thread([thread for thread in threads if thread.pid in (0, item.facts["pid"])])
        for thread in threads:
            if thread.pid in (0, item.facts["pid"]):
                host = item.facts.get("host") or raw.host
                row = _thread_row(host, item, thread, texts, readings, native)
                rows["stack_threads"].append(row if program is None else {**row, "is_main": thread is program})
                rows["stack_frames"].extend(_frame_rows(host, item, thread, texts))
    for item in raw.of(THREADS):
        if item.facts.get("role") == CHILD and item.facts["phase"] == BEFORE:
            rows["stack_threads"].extend(_child_rows(raw.host, item, texts, readings))
    for item in raw.of(SOURCE):
        text = texts.raw[item.facts["file"]]
        rows["sources"].append({"host": raw.host, "file": item.facts["file"], "text": text, "source": item.source})
    rows["log_events"] = [row for item in raw.of(STACK) if item.facts["role"] == DEAD for row in death_rows(raw, item)]
    rows["unread"] = [{"host": raw.host, **item.facts} for item in raw.of(UNREAD)]
    rows["outputs"] = [*output_rows(raw), *({"host": raw.host, **item.facts} for item in raw.of(ADVANCE))]
    rows["file_locks"] = [
        {"host": raw.host, "source": item.source, **asdict(wait)}
        for item in raw.of(LOCKS)
        for wait in parse_file_locks(item.data.decode("utf-8", "replace"))
    ]
    rows["wait_counters"] = [row for item in raw.of(COUNTERS) for row in _counter_rows(raw.host, item)]
    return rows


_RAYS_THREAD = "TrainingThread("
"""Begins the name of the thread in which Ray Train calls the training function (train/v2/…/thread_runner.py, 2.61)."""


def _program_thread(threads: Sequence[ThreadStack]) -> ThreadStack | None:
    """The thread that runs the training program, if it is not the interpreter's main thread."""
    found = [thread for thread in threads if thread.name.startswith(_RAYS_THREAD)]
    return found[0] if len(found) == 1 else None


_MOST_COUNTERS = 500


def _counter_rows(host: str, item: RawItem) -> list[dict[str, Any]]:
    """The wait counters of a rank, from torch's `wait_counter_values` (torch 2.13, c10/util/WaitCounter)."""
    here = {"host": item.facts.get("host") or host, "rank": item.facts["rank"], "source": item.source}
    counters = [(name, of) for name, of in read_object(item.data).items() if isinstance(of, dict)]
    kept = {"active": "active_count", "calls": "total_calls", "total_us": "total_time_us", "longest_us": "max_time_us"}
    return [
        {**here, "counter": name[:200], **{column: whole(of.get(key), LARGEST) for column, key in kept.items()}}
        for name, of in counters[:_MOST_COUNTERS]
    ]


Readings = dict[tuple[int, int, str, int], KernelReading]
"""By (pid, look, before or after that look's dump, tid)."""


def readings_by_look(raw: Raw) -> Readings:
    """Return the kernel's thread states of a capture by (pid, sample number, phase, thread id)."""
    readings: Readings = {}
    for item in raw.of(THREADS):
        for tid, reading in kernel_readings(item.data).items():
            readings[item.facts["pid"], item.facts["look"], item.facts["phase"], tid] = reading
    return readings


def kernel_readings(data: bytes) -> dict[int, KernelReading]:
    """Return the readings in a host's `threads` answer by thread id; empty for anything else."""
    found: dict[int, KernelReading] = {}
    for thread in _thread_list(data):
        call = thread.get("syscall") or {}
        found[thread["tid"]] = KernelReading(
            state=thread.get("state"),
            wchan=thread.get("wchan"),
            syscall=call.get("name"),
            blocked_on=call.get("target"),
            switches=thread.get("voluntary_switches"),
            cpu_ns=thread.get("cpu_ns"),
            blocked_s=thread.get("blocked_s"),
        )
    return found


def _thread_list(data: bytes) -> list[dict[str, Any]]:
    listed = read_object(data).get("threads")
    return [t for t in listed if isinstance(t, dict) and "tid" in t] if isinstance(listed, list) else []


def native_frames(raw: Raw) -> dict[int, Sequence[Frame]]:
    """Return the native frames of main threads by pid, where a readable dump with native frames exists."""
    found: dict[int, Sequence[Frame]] = {}
    for item in raw.of(NATIVE):
        with suppress(UnreadableInput):  # the plain frames remain
            found.update((item.facts["pid"], thread.frames) for thread in parse_pyspy(item.data) if thread.is_main)
    return found


def activity_of(
    thread: ThreadStack, code: str | None, kernel: KernelView, native: Sequence[Frame] | None = None
) -> Activity:
    """Return what a thread is doing, such as running or waiting in a collective.

    `code` is the source text of its innermost user line, `kernel` the kernel's view of the thread. `native` has native
    frames, if known: they show whether a running main thread waits for its GPU.
    """
    rules = frame_rules()
    found = rules.activity(thread.frames, thread.running, code, kernel)
    if native is None or not thread.is_main or found.name != "running":
        return found
    return rules.activity(native, thread.running, code, kernel)


def _thread_row(
    host: str,
    item: RawItem,
    thread: ThreadStack,
    texts: _Texts,
    readings: Readings,
    native: Mapping[int, Sequence[Frame]],
) -> dict[str, Any]:
    pid, look = item.facts["pid"], item.facts["look"]
    before = readings.get((pid, look, BEFORE, thread.tid))
    now = before or readings.get((pid, look, AFTER, thread.tid))
    last = readings.get((pid, look - 1, AFTER, thread.tid))
    first = readings.get((pid, 1, BEFORE, thread.tid))
    user = _program_frames(thread.frames)
    innermost = user[0] if user else None
    code = (texts.line(innermost) or innermost.code or None) if innermost else None
    kernel = now or KernelView()
    telling = innermost or next(iter(thread.frames), None)
    activity = activity_of(thread, code, kernel, native.get(pid))
    line = _line_of(item, telling)
    return as_row(
        "stack_threads",
        thread,
        kernel,
        host=host,
        **{name: item.facts[name] for name in ("rank", "pid", "role", "taken_s")},
        snapshot=look,
        thread=thread.name,
        blocked_s=first.blocked_s if first else None,
        moved=now.ran_since(last) if now and last else None,
        switched=now.switched_since(last) if now and last else None,
        wakes=now.wakes_since(last) if now and last else None,
        activity=activity.name,
        operation=activity.operation,
        contexts=json.dumps(frame_rules().contexts(thread.frames, [texts.qualified(f) for f in user])),
        phase=phase_of(thread.frames),
        user_file=innermost.file if innermost else None,
        user_line=innermost.line if innermost else None,
        user_function=texts.qualified(innermost) if innermost else None,
        user_source=code,
        user_stack=json.dumps([[frame.file, frame.line, texts.qualified(frame)] for frame in reversed(user)]),
        frames_key=_frames_key(thread.frames),
        source=item.source,
        source_line=line,
        source_text=telling.printed if telling and line is not None else None,
    )


def _child_rows(host: str, item: RawItem, texts: _Texts, readings: Readings) -> list[dict[str, Any]]:
    """The row of a process that a rank started: it may be any program, so only the kernel's view exists."""
    pid = item.facts["pid"]
    reading = kernel_readings(item.data).get(pid)
    if reading is None:
        return []
    thread = ThreadStack(pid, pid, item.facts["name"], running=reading.state == "R", owns_gil=False, frames=())
    return [_thread_row(host, item, thread, texts, readings, {})]


def _line_of(item: RawItem, frame: Frame | None) -> int | None:
    """The line of a frame in a file with several ranks, where the file name by itself does not lead to the rank's
    dump."""
    above = item.facts.get("above")
    return None if above is None else above + (frame.at if frame else 1)


def _program_frames(frames: tuple[Frame, ...]) -> list[Frame]:
    """The user's frames, innermost first; for a program installed as a package, that package's frames."""
    return [f for f in frames if f.is_user] or [f for f in frames if is_program_file(f.file)]


def _frame_rows(host: str, item: RawItem, thread: ThreadStack, texts: _Texts) -> list[dict[str, Any]]:
    here = {"host": host, "pid": item.facts["pid"], "snapshot": item.facts["look"], "tid": thread.tid}
    return [
        here
        | {name: getattr(frame, name) for name in ("file", "module", "line", "is_user")}
        | {
            "depth": depth,
            "function": texts.qualified(frame),
            "code": texts.line(frame) or frame.code or None,
            "variables": json.dumps(dict(frame.variables)) if frame.variables else None,
            "source_line": _line_of(item, frame),
        }
        for depth, frame in enumerate(thread.frames)
    ]


def _frames_key(frames: tuple[Frame, ...]) -> str:
    text = "\n".join(f"{frame.module}:{frame.line}:{frame.bare_function}" for frame in frames)
    return hashlib.sha1(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:16]


# --- what ranks printed between the first and last sample: further steps, or further counts of their own work


@dataclass(frozen=True)
class _End:
    """The end of an output file at one moment."""

    step: int | None = None
    """The last training step."""
    counted: str | None = None
    """The last line that counts work, without its numbers."""
    done: int | None = None
    total: int | None = None
    repeated: bool = False
    """The same work was counted before, and training steps came after it."""


def output_rows(raw: Raw) -> list[dict[str, Any]]:
    """Return the rows of `outputs`: for each file, whether it gained training steps, and what work it counted.

    That it grew is not enough: a monitor or a heartbeat keeps printing while the job hangs.
    """
    ends = gathered((item.facts["path"], _read_end(item.data)) for item in raw.of(OUTPUT))
    ranks = {item.facts["path"]: item.facts["ranks"] for item in raw.of(OUTPUT)}
    rank = {path: of_path[0] if len(of_path) == 1 else None for path, of_path in ranks.items()}
    return [
        {"host": raw.host, "path": path, "rank": rank[path], "stepped": _rises(seen), **_work(seen)}
        for path, seen in ends.items()
    ]


def _read_end(end: bytes) -> _End:
    step: int | None = None
    counted: tuple[str, int, int] | None = None
    before: set[str] = set()
    for line in re.split(r"[\r\n]+", end.decode("utf-8", "replace")):
        facts = step_facts(line)
        if facts and (count := counted_work(facts)):
            counted = facts.shape, *count
        elif progress := parse_progress(line):
            step = progress.step
            if counted:
                before.add(counted[0])
    if counted is None:
        return _End(step)
    shape, done, total = counted
    return _End(step, shape, done, total, shape in before)


def _rises(ends: Sequence[_End]) -> bool | None:
    """Whether the last step's number rose; None if the output has no step numbers."""
    first, last = ends[0].step, ends[-1].step
    return None if first is None or last is None else last > first


def _work(ends: Sequence[_End]) -> dict[str, Any]:
    """The work whose count rose between samples."""
    first, last = ends[0], ends[-1]
    if first.done is None or last.done is None or (first.counted, first.total) != (last.counted, last.total):
        return {}
    told = {name: getattr(last, name) for name in ("counted", "done", "total", "repeated")}
    return {**told, "done_before": first.done}
