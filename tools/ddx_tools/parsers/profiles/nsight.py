"""Reads an SQLite export of Nsight Systems (`nsys export --type sqlite`): one trace for each process that ran kernels.

Source: see `ddx_tools.model.files.nsight_export`. `globalPid` and `globalTid` hold the pid in bits 24 to 47, the thread
in the 24 bits below it. Kernels are named as in Kineto's traces. An export says neither ranks nor the sizes and groups
of collectives: these stay unknown.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.nsight_export import (
    CALLS,
    COPIES,
    CUT,
    DAMAGE,
    GRAPHS,
    KERNELS,
    RANGES,
    SESSION,
    STRINGS,
    SYSTEM,
    TABLES,
    ids_in_use,
    opened,
    reason_of,
    tables_in,
)
from ddx_tools.parsers.profiles.rank_trace import (
    MOST_NAME,
    MOST_NS,
    Busy,
    RankTrace,
    collective_of,
    expression,
    is_named,
    operation_of,
)

_MOST_ROWS = 10_000_000
"""Over all tables."""
_MOST_STRINGS = 300_000
_MOST_MARKS = 1_000_000
_MOST_PROCESSES = 64
_MOST_UNNAMED = 0.05
_THREAD_BITS, _MOST_PID = 24, 0xFFFFFF
_GRAPH = "(CUDA graph)"
_VERSION = re.compile(r"(?:_ptsz|_ptds)?_v\d{1,6}$")
"""What follows the name of a call: `cudaStreamSynchronize_v3020`."""


def read_export(source: Path | bytes) -> list[RankTrace]:
    """Read the traces of all processes that ran kernels, by process. Times in ns since the epoch.

    `pid` is set if there are several. Raises `UnreadableInput` if it is no export, or has no kernel.
    """
    with opened(source) as db:
        export = _Export(db)
        found = export.read()
    if not found:
        why = export.problems or [
            "no kernel was recorded. Trace CUDA and NVTX: nsys profile --trace=cuda,nvtx -o trace_rank%q{RANK} …"
        ]
        raise UnreadableInput(f"an export of Nsight Systems without a trace: {'; '.join(why)}")
    found[0].problems = export.problems
    return found


class _Export:
    """One pass over the tables of an export."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.problems: list[str] = []
        """What was not read, as lines for a person."""
        self._db = db
        self._tables = tables_in(db)
        self._left = _MOST_ROWS
        self._odd = 0
        # Before 2021, an export was of one process, and named none.
        self._many = "globalPid" in self._tables.get(KERNELS, self._tables.get(GRAPHS, ()))
        self._names: dict[int, str] = {}
        self._base_ns = 0
        self._traces: dict[int, RankTrace] = {}
        self._steps: dict[int, dict[tuple[str, int], list[tuple[int, int, int]]]] = defaultdict(dict)
        """By trace: (start, end, number) of its numbered ranges, by name and thread."""
        self._marks = 0

    def read(self) -> list[RankTrace]:
        """The traces of all processes with kernels."""
        self._names = self._strings()
        start_ns = next((row[0] for row in self._rows(SESSION, "utcEpochNs")), None)
        self._base_ns = start_ns if isinstance(start_ns, int) and 0 < start_ns < MOST_NS else 0
        host = next((value for name, value in self._rows(SYSTEM, "name", "value") if name == "Hostname"), None)
        self._kernels()
        self._traces = {process: trace for process, trace in self._traces.items() if trace.kernels}
        for table in COPIES:
            for trace, start_ns, end_ns, stream in self._timed(table, "globalPid", "streamId"):
                trace.intervals.add(Busy.COPY, _lane(stream), start_ns, end_ns)
        self._waits()
        self._ranges()
        for process, trace in self._traces.items():
            trace.about = {"host_name": host}
            trace.pid = process >> _THREAD_BITS & _MOST_PID if len(self._traces) > 1 else None
            self._mark_steps(trace)
        self._say_gaps()
        return [trace for _, trace in sorted(self._traces.items())]

    # --- rows

    def _rows(
        self, table: str, *columns: str, where: str = "", given: tuple[Any, ...] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, with None for columns that it lacks; damage ends them and is noted."""
        if not (have := self._tables.get(table)):
            return
        picked = ", ".join(f'"{column}"' if column in have else "NULL" for column in columns)
        count = 0
        try:
            for row in self._db.execute(f'SELECT {picked} FROM "{table}" {where} LIMIT {self._left + 1}', given):
                count += 1
                if count > self._left:
                    self.problems.append(f"only the first {_MOST_ROWS:,} rows were read; the rest of {table} was not")
                    break
                yield row
        except DAMAGE as error:
            self.problems.append(f"its table {table} is damaged or cut off after {count} rows: {reason_of(error)}")
        self._left = max(0, self._left - count)

    def _timed(
        self, table: str, whose: str, *columns: str, where: str = "", given: tuple[Any, ...] = ()
    ) -> Iterator[Any]:
        """Yield (trace, start in ns since the epoch, end, further columns) of the rows of processes with kernels."""
        for process, start, end, *further in self._rows(
            table, whose, "start", "end", *columns, where=where, given=given
        ):
            if end is None:  # an NVTX mark, or a range that was still open
                continue
            trace = self._trace(process, makes=table in (KERNELS, GRAPHS))
            if trace is None:
                continue
            trace.events += 1
            if (
                isinstance(start, int)
                and isinstance(end, int)
                and -self._base_ns <= start <= end < MOST_NS - self._base_ns
            ):
                yield trace, self._base_ns + start, self._base_ns + end, *further
            else:
                self._odd += 1

    def _trace(self, process: object, *, makes: bool) -> RankTrace | None:
        """The trace of a process or thread; only kernels make one, since a data loader's worker is no rank."""
        key = process >> _THREAD_BITS << _THREAD_BITS if self._many and isinstance(process, int) else 0
        if key not in self._traces and makes and len(self._traces) < _MOST_PROCESSES:
            self._traces[key] = RankTrace()
        return self._traces.get(key)

    def _strings(self) -> dict[int, str]:
        """The texts that the other tables refer to, by id; all texts if one of those tables is damaged."""
        used = ids_in_use(self._tables)
        before = len(self.problems)
        for where in (f"WHERE id IN ({used})" if used else "", ""):
            del self.problems[before:]
            rows = islice(self._rows(STRINGS, "id", "value", where=where), _MOST_STRINGS)
            found = {key: text[:MOST_NAME] for key, text in rows if isinstance(key, int) and isinstance(text, str)}
            if len(self.problems) == before:
                break
        return found

    # --- what they mean

    def _kernels(self) -> None:
        found = self._timed(KERNELS, "globalPid", "demangledName", "shortName", "streamId", "deviceId")
        devices: dict[int, set[object]] = {}
        kernels = unnamed = 0
        for trace, start_ns, end_ns, long_name, short_name, stream, device in found:
            name = self._names.get(long_name) or self._names.get(short_name) or "(unnamed)"
            kernels += 1
            unnamed += name == "(unnamed)"
            devices.setdefault(id(trace), set()).add(device)
            if trace.add_kernel(name, _lane(stream), start_ns, end_ns):
                op, _, _ = collective_of(operation_of(name))
                trace.add_collective(start_ns, end_ns, op=op, on_gpu=True)
        if unnamed > _MOST_UNNAMED * kernels:
            raise UnreadableInput(
                f"{unnamed} of {kernels} kernels have no name in its table {STRINGS}, so computing and communication "
                "cannot be distinguished. Export it again: nsys export --type sqlite FILE.nsys-rep"
            )
        graphs = 0
        for trace, start_ns, end_ns, stream in self._timed(GRAPHS, "globalPid", "streamId"):
            trace.add_kernel(_GRAPH, _lane(stream), start_ns, end_ns)
            graphs += 1
        if graphs:
            self.problems.append(
                f"{graphs} CUDA graphs were recorded as a whole and count as computing, also where they communicate: "
                "record again with --cuda-graph-trace=node"
            )
        if (many := max((len(each) for each in devices.values()), default=0)) > 1:
            self.problems.append(f"a process ran kernels on {many} GPUs, which count as one")

    def _waits(self) -> None:
        """The calls in which the host waits for the GPU."""
        waits = [key for key, name in self._names.items() if is_named(_VERSION.sub("", name), "waits")][:500]
        where = f"WHERE nameId IN ({', '.join('?' * len(waits))})"
        if "nameId" in self._tables.get(CALLS, ()):
            for trace, start_ns, end_ns, thread in self._timed(
                CALLS, "globalTid", "globalTid", where=where, given=tuple(waits)
            ):
                trace.intervals.add(Busy.WAIT, _lane(thread), start_ns, end_ns)

    def _ranges(self) -> None:
        """The NVTX ranges: steps, optimizer steps, and fetching of data."""
        for trace, start_ns, end_ns, text, key, thread in self._timed(
            RANGES, "globalTid", "text", "textId", "globalTid"
        ):
            name = text[:MOST_NAME] if isinstance(text, str) else self._names.get(key, "")
            if is_named(name, "data"):
                trace.intervals.add(Busy.DATA, _lane(thread), start_ns, end_ns)
                continue
            match = expression("numbered").match(name)
            if not (match or is_named(name, "updates")) or self._marks == _MOST_MARKS:
                continue
            self._marks += 1
            if match:
                kind = (name[: match.start(1)], _lane(thread))
                self._steps[id(trace)].setdefault(kind, []).append((start_ns, end_ns, int(match[1])))
            else:
                trace.add_update(name, end_ns)

    def _mark_steps(self, trace: RankTrace) -> None:
        """Mark the steps: the numbered ranges of one name and thread that take longest, else the optimizer's."""
        kinds = self._steps[id(trace)]
        if not kinds:
            trace.cut_at_updates()
            if not trace.updates:
                self._note(
                    "no NVTX range numbers the steps, so all of the recording counts as one step, with warm-up and "
                    'pauses: call torch.cuda.nvtx.range_push(f"step {n}") and range_pop() around each step'
                )
            return
        trace.steps_by = "range"
        profiler = [kind for kind in kinds if kind[0].startswith("ProfilerStep")]
        steps = kinds[max(profiler or kinds, key=lambda kind: sum(end - start for start, end, _ in kinds[kind]))]
        steps.sort()
        repeats = len({number for _, _, number in steps}) < len(steps)  # as in a second epoch
        for place, (start_ns, end_ns, number) in enumerate(steps):
            trace.intervals.add(Busy.STEP, place if repeats else number, start_ns, end_ns)

    def _say_gaps(self) -> None:
        for (name,) in self._rows(CUT, "name"):
            if name in TABLES:
                self._note(f"its table {name} was damaged or cut off")
        if self._odd:
            self._note(f"{self._odd} rows have times of the wrong type, or that end before they begin: left out")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _lane(value: object) -> int:
    return value if isinstance(value, int) else 0
