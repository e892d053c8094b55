"""Samples every rank of a live job once or several times, or reads stack dumps from the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import (
    AFTER,
    BEFORE,
    CHILD,
    LOCKS,
    NATIVE,
    OUTPUT,
    SOURCE,
    STACK,
    THREADS,
    UNREAD,
)
from ddx_tools.knowledge.frame_classes import KernelView, frame_rules
from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import HostError, UnreadableInput
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.model.stack_frame import Frame
from ddx_tools.parsers.launch.job_files import may_be_file
from ddx_tools.parsers.launch.launchers import JobProcess
from ddx_tools.parsers.python.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.probes.stacks.debug_server import fill_gaps, read_server
from ddx_tools.probes.stacks.dump_files import read_dump, read_paths
from ddx_tools.probes.stacks.probe import StacksArgs
from ddx_tools.probes.stacks.rows import (
    KernelReading,
    Readings,
    activity_of,
    kernel_readings,
    native_frames,
    readings_by_look,
)
from ddx_tools.sources.host import Host, Reply, ask_together
from ddx_tools.sources.hosts.debug_endpoints import server_of_job
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.job_target import job_on
from ddx_tools.sources.kinds import TextKind
from ddx_tools.sources.raw import Raw, RawItem

_PARALLEL = 8
_DUMP_DEADLINE_S = 8.0
_SOURCE_LIMIT_FILES = 40
_SOURCE_LIMIT_BYTES = 512 << 10
_SHORTEST_PAUSE_S = 0.3
_END_BYTES = 2048
_STOPPED_STATES = frozenset("TtD")
_GPUS = "/dev/nvidia[0-9]*"
_MOST_NATIVE = 16
_LOCKS, _MOST_LOCK_BYTES = "/proc/locks", 256 << 10
_LOCKING = re.compile(r"^(flock|fcntl)\b|\b(locks_lock|flock_lock|posix_lock|fcntl_setlk)\w*")
_MOST_CHILDREN = 16


@dataclass
class _Process:
    """A process to sample, and the threads that its last dump showed."""

    pid: int
    rank: int | None
    role: str
    tids: tuple[int, ...] = ()
    name: str = ""


def capture_stacks(host: Host, args: StacksArgs) -> Raw:
    """Dump all ranks in parallel, once or several times; a failed dump does not stop the others.

    `among_others`: ranks on other hosts may wait for the ranks here, so a further sample is taken even if none waits
    here. With paths as target, it attaches to nothing and reads the dumps among these files.
    """
    raw = Raw(host.name)
    if args.paths:
        read_paths(host, raw, args.paths)
        dumps = intake_of(host, args.paths).of(TextKind.STACKS, FileKind.CORE)
        written = [dump.written_ns for dump in dumps if dump.written_ns]
        _read_sources(host, raw, unless_after_ns=max(written, default=None))
        raw.status = ProbeStatus.OK if raw.items else ProbeStatus.NO_DATA
        return raw
    if args.debug_server:
        read_server(host, raw, args, args.debug_server)
        if any(item.facts["host"] == host.name for item in raw.of(STACK)):  # else a file of that name may differ
            _read_sources(host, raw)
        return raw
    job = job_on(host, args.target)
    ranks = [_Process(member.pid, member.rank, member.role) for member in job.live if member.pid]
    raw.searched.append(f"{len(ranks)} rank processes of {job.id} on {host.name}")
    outputs = _outputs(job.live) if args.looks > 1 else {}
    _look(host, raw, ranks, 1)
    _read_ends(host, raw, outputs)
    watched = [*ranks, *_processes_of_interest(raw, job.members)]
    if len(watched) > len(ranks):
        _look(host, raw, watched[len(ranks) :], 1)
    if args.looks > 1:
        host.pause(args.apart_s)
        _look(host, raw, watched, 2)
        _look_into_native_code(host, raw)
        _read_file_locks(host, raw)
        # If no rank waits and none has changed place, the two samples were too close together to show movement.
        again = args.among_others or (args.confirm_s > 0 and not _anybody_moved(raw))
        short_s = _short_of(raw, args.confirm_s, if_none_waits=again)
        if short_s is not None:
            host.pause(max(short_s, _SHORTEST_PAUSE_S))
            _look(host, raw, watched, 3)
    _read_ends(host, raw, outputs)
    fill_gaps(host, raw, args, server_of_job(job))
    _read_sources(host, raw)
    return raw


def _outputs(members: Iterable[JobProcess]) -> dict[str, list[int | None]]:
    """The regular files that ranks print to, each with its ranks."""
    printing: dict[str, list[int | None]] = {}
    for member in members:
        path = (member.process.row.get("fds") or {}).get("1") if member.process else None
        if path and may_be_file(path):
            printing.setdefault(path, []).append(member.rank)
    return printing


def _read_ends(host: Host, raw: Raw, outputs: Mapping[str, list[int | None]]) -> None:
    """Read the end of each output file; comparing two samples shows whether the job prints."""
    for path, ranks in outputs.items():
        try:
            end = host.read(path, max_bytes=_END_BYTES, tail=True)
        except HostError:
            continue  # without this log, it stays unknown whether the job prints
        raw.items.append(RawItem(OUTPUT, end.data, end.source, {"path": path, "ranks": ranks}))


def _look(host: Host, raw: Raw, processes: list[_Process], look: int) -> None:
    """Take one sample: a kernel reading, the dump, another kernel reading.

    A dump pauses the process, and the kernel counts that as having run. So movement is measured from the reading after
    one dump to the reading before the next, while ddx does not touch the threads.
    """
    taken_s = host.now()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for items, failure in pool.map(lambda process: _look_at(host, process, look, taken_s), processes):
            raw.items.extend(items)
            if failure:
                process, error = failure
                what = f"rank {process.rank} (pid {process.pid})"
                raw.failed(what, error, "what this rank is doing is unknown")
                if look == 1 and process.role == "rank":
                    facts = {"rank": process.rank, "pid": process.pid, "reason": error.message, "remedy": error.help}
                    raw.items.append(RawItem(UNREAD, b"", "", facts))


def _look_at(
    host: Host, process: _Process, look: int, taken_s: float
) -> tuple[list[RawItem], tuple[_Process, HostError] | None]:
    facts: dict[str, Any] = {"pid": process.pid, "rank": process.rank, "role": process.role, "look": look}
    if process.role == CHILD:
        facts |= {"name": process.name, "taken_s": taken_s}
    items: list[RawItem] = []
    try:
        before = host.threads(process.pid, process.tids or (process.pid,))
        items.append(RawItem(THREADS, before.data, before.source, {**facts, "phase": BEFORE}))
        if process.role == CHILD:
            # This may be any program; ddx does not touch it, so one reading serves as both.
            return [*items, RawItem(THREADS, before.data, before.source, {**facts, "phase": AFTER})], None
        states = {reading.state for reading in kernel_readings(before.data).values()}
        blocking = not states & _STOPPED_STATES
        dump = host.stack(process.pid, blocking=blocking, timeout_s=_DUMP_DEADLINE_S)
        process.tids = tuple(sorted(thread.tid for thread in parse_pyspy(dump.data)))
        items.append(RawItem(STACK, dump.data, dump.source, {**facts, "taken_s": taken_s}))
        after = host.threads(process.pid, process.tids)
        items.append(RawItem(THREADS, after.data, after.source, {**facts, "phase": AFTER}))
    except HostError as error:
        return items, (process, error)
    except UnreadableInput as error:
        return items, (process, HostError(error.message, error.help))
    return items, None


def _main_threads(raw: Raw, look: int) -> Iterable[tuple[RawItem, ThreadStack]]:
    for item in raw.of(STACK):
        if item.facts["look"] == look and item.facts["role"] == "rank":
            yield from ((item, thread) for thread in parse_pyspy(item.data) if thread.is_main)


def _look_into_native_code(host: Host, raw: Raw) -> None:
    """Take one dump with native frames of each rank that runs native code at the same place in two samples.

    A thread that waits for its GPU spins in the driver. The kernel and the Python frames show that as work.
    """
    earlier = {item.facts["pid"]: thread for item, thread in _main_threads(raw, 1)}
    readings = readings_by_look(raw)
    spinning = [
        item.facts
        for item, thread in _main_threads(raw, 2)
        if (before := earlier.get(item.facts["pid"])) is not None
        and before.frames == thread.frames
        and not (before.owns_gil or thread.owns_gil)
        and _activity(readings, item, thread) == "running"
    ][:_MOST_NATIVE]
    try:
        if not spinning or not host.glob(_GPUS):
            return
    except HostError:
        return  # bundles of older versions lack this capture

    def dump(facts: dict[str, Any]) -> Reply:
        return host.stack(facts["pid"], native=True, timeout_s=_DUMP_DEADLINE_S)

    for facts, reply in ask_together(dump, spinning, _PARALLEL):
        # If this dump fails, the plain frames remain; what the rank waits for stays unknown.
        if isinstance(reply, Reply):
            raw.items.append(RawItem(NATIVE, reply.data, reply.source, facts))


def _read_file_locks(host: Host, raw: Raw) -> None:
    """Read which processes hold the files that ranks wait to lock."""
    if not any(_LOCKING.search(f"{reading.syscall} {reading.wchan}") for reading in readings_by_look(raw).values()):
        return
    try:
        text = host.read(_LOCKS, max_bytes=_MOST_LOCK_BYTES)
    except HostError:
        return  # the lock's holder stays unknown
    raw.items.append(RawItem(LOCKS, text.data, text.source, {}))


def _activity(
    readings: Readings, item: RawItem, thread: ThreadStack, native: Mapping[int, Sequence[Frame]] | None = None
) -> str:
    """The activity, judged by frames and kernel only (the program texts are not read yet)."""
    kernel = readings.get((item.facts["pid"], item.facts["look"], AFTER, thread.tid)) or KernelView()
    return activity_of(thread, None, kernel, (native or {}).get(item.facts["pid"])).name


def _processes_of_interest(raw: Raw, members: Iterable[JobProcess]) -> list[_Process]:
    """The processes that ranks wait for: data-loader workers and any other children. They matter only if a rank waits
    for them."""
    readings = readings_by_look(raw)
    doing = {item.facts["rank"]: _activity(readings, item, thread) for item, thread in _main_threads(raw, 1)}
    live = [(member, member.process) for member in members if member.process]
    workers = [
        _Process(process.pid, member.rank, member.role)
        for member, process in live
        if member.role == "dataloader_worker" and doing.get(member.rank) == "data_wait"
    ]
    children = [
        _Process(process.pid, member.rank, CHILD, name=process.name)
        for member, process in live
        if member.role == "helper" and doing.get(member.rank) in frame_rules().may_wait_for_child
    ]
    return workers + children[:_MOST_CHILDREN]


def _short_of(raw: Raw, confirm_s: float, *, if_none_waits: bool) -> float | None:
    """Seconds left until every waiting rank has made no progress for `confirm_s`.

    None if there is nothing to confirm: a rank moved, or all have made no progress for that long. Where no rank waits
    for a peer, all ranks count if `if_none_waits`.
    """
    rules, readings, native = frame_rules(), readings_by_look(raw), native_frames(raw)
    waited: list[float] = []
    others: list[float] = []
    for item, thread in _main_threads(raw, 2):
        pid, tid = item.facts["pid"], thread.tid
        activity = _activity(readings, item, thread, native)
        then, now = readings.get((pid, 1, AFTER, tid)), readings.get((pid, 2, BEFORE, tid))
        first = readings.get((pid, 1, BEFORE, tid))
        before_s = (first.blocked_s if first else None) or 0.0
        observed_s = item.facts["taken_s"] - _taken_s(raw, pid, 1)
        if activity not in rules.waits_for_peers:
            # Any wake-up may have been progress of a thread that waits for no peer.
            asleep = then is not None and now is not None and now.ran_since(then) is False
            others.append(observed_s + (before_s if asleep else 0.0))
            continue
        if then and now and _got_on(rules.progress_shows_in(activity, now.wchan, thread.running), then, now):
            return None
        waited.append(before_s + observed_s)
    counted = waited or (others or [0.0] if if_none_waits else [])
    return confirm_s - min(counted) if counted and min(counted) < confirm_s else None


def _anybody_moved(raw: Raw) -> bool:
    """Whether any rank is at another place in its program than in the first sample."""
    earlier = {item.facts["pid"]: thread.frames for item, thread in _main_threads(raw, 1)}
    return any(earlier.get(item.facts["pid"]) != thread.frames for item, thread in _main_threads(raw, 2))


def _got_on(shows_in: str, then: KernelReading, now: KernelReading) -> bool:
    if shows_in == "switched":
        return bool(now.switched_since(then))
    return shows_in == "ran" and bool(now.ran_since(then))


def _taken_s(raw: Raw, pid: int, look: int) -> float:
    taken = (i.facts["taken_s"] for i in raw.of(STACK) if i.facts["pid"] == pid and i.facts["look"] == look)
    return float(next(taken, 0.0))


def _is_source(frame: Frame) -> bool:
    return frame.file.startswith("/") and frame.file.endswith(".py") and frame_rules().wants_source(frame)


def _read_sources(host: Host, raw: Raw, *, unless_after_ns: int | None = None) -> None:
    """Read the source files that the frames name, each once.

    A job controls the file names in its frames; only Python source is read, so that no frame can make ddx keep a
    secret. `unless_after_ns`: when the dumps were written; a file that was changed later is not what the job ran.
    """
    files: dict[str, None] = {}
    for item in raw.of(STACK):
        for thread in read_dump(item.data):
            files.update(dict.fromkeys(frame.file for frame in thread.frames if _is_source(frame)))
    for file in list(files)[:_SOURCE_LIMIT_FILES]:
        if unless_after_ns is not None and _written_ns(host, file) > unless_after_ns:
            raw.problems.append(f"{file} was changed after these stacks were written: its lines are not shown")
            continue
        try:
            text = host.read(file, max_bytes=_SOURCE_LIMIT_BYTES)
        except HostError:
            continue  # a frame without source text still has its file and line
        raw.items.append(RawItem(SOURCE, text.data, text.source, {"file": file}))


def _written_ns(host: Host, file: str) -> int:
    """The time of a file's last change in ns since the epoch; 0 if unknown, as in bundles of earlier versions."""
    try:
        return next((found.written_ns or 0 for found in host.walk(file).files), 0)
    except HostError:
        return 0
