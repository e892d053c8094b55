"""Looking at every rank of a live job, once or several times; or at the dumps that somebody brought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.stacks.main_threads import (
    AFTER,
    BEFORE,
    CHILD,
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
from ddx_tools.model.stack_frame import Frame
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
from ddx_tools.sources.job_target import job_on
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
_MOST_CHILDREN = 16


@dataclass
class _Process:
    """A process to look at, and the threads that its last dump showed."""

    pid: int
    rank: int | None
    role: str
    tids: tuple[int, ...] = ()
    name: str = ""


def capture_stacks(host: Host, args: StacksArgs) -> Raw:
    """Dump all ranks in parallel, once or several times; one that fails does not stop the others.

    `among_others`: ranks on other hosts may wait for those here, so that it is confirmed also where none waits.
    With paths as target nothing is attached to: the dumps among these files are read.
    """
    raw = Raw(host.name)
    if args.paths:
        read_paths(host, raw, args.paths)
        _read_sources(host, raw)
        raw.status = ProbeStatus.OK if raw.items else ProbeStatus.NO_DATA
        return raw
    if args.debug_server:
        read_server(host, raw, args, args.debug_server)
        if any(item.facts["host"] == host.name for item in raw.of(STACK)):  # else a file of that name may be another
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
        # Where none waits and none is elsewhere than before, two looks were too close to each other to tell.
        again = args.among_others or (args.confirm_s > 0 and not _anybody_moved(raw))
        short_s = _short_of(raw, args.confirm_s, args.confirm_s - args.apart_s if again else None)
        if short_s is not None:
            host.pause(max(short_s, _SHORTEST_PAUSE_S))
            _look(host, raw, watched, 3)
    _read_ends(host, raw, outputs)
    fill_gaps(host, raw, args, server_of_job(job))
    _read_sources(host, raw)
    return raw


def _outputs(members: Iterable[JobProcess]) -> dict[str, list[int | None]]:
    """The regular files that ranks print to, with the ranks that do."""
    printing: dict[str, list[int | None]] = {}
    for member in members:
        path = (member.process.row.get("fds") or {}).get("1") if member.process else None
        if path and path.startswith("/") and not path.startswith("/dev/"):
            printing.setdefault(path, []).append(member.rank)
    return printing


def _read_ends(host: Host, raw: Raw, outputs: Mapping[str, list[int | None]]) -> None:
    """The end of each output file; compared between two looks it shows whether the job prints."""
    for path, ranks in outputs.items():
        try:
            end = host.read(path, max_bytes=_END_BYTES, tail=True)
        except HostError:
            continue  # a log that cannot be read only leaves the question open
        raw.items.append(RawItem(OUTPUT, end.data, end.source, {"path": path, "ranks": ranks}))


def _look(host: Host, raw: Raw, processes: list[_Process], look: int) -> None:
    """One look: what the kernel says before the dump, the dump, what the kernel says after it.

    A dump pauses the process, which counts as having run; so movement is measured between the reading after
    one dump and the reading before the next, when nothing of ours touches the threads.
    """
    taken_s = host.now()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for items, failure in pool.map(lambda process: _look_at(host, process, look, taken_s), processes):
            raw.items.extend(items)
            if failure:
                process, error = failure
                what = f"rank {process.rank} (pid {process.pid})"
                raw.failed(what, error, "nobody knows what this rank is doing")
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
            # Any program at all: nothing of ours touches it, so that one reading stands for both.
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
    """One dump with native frames of each rank that runs native code at the same place in two looks.

    A thread that waits for its GPU spins in the driver. To the kernel and to Python's frames that is work.
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
        return  # a bundle of an older version did not ask

    def dump(facts: dict[str, Any]) -> Reply:
        return host.stack(facts["pid"], native=True, timeout_s=_DUMP_DEADLINE_S)

    for facts, reply in ask_together(dump, spinning, _PARALLEL):
        # Of one that does not answer the plain frames are there; what it waits for stays unknown.
        if isinstance(reply, Reply):
            raw.items.append(RawItem(NATIVE, reply.data, reply.source, facts))


def _activity(
    readings: Readings, item: RawItem, thread: ThreadStack, native: Mapping[int, Sequence[Frame]] | None = None
) -> str:
    """The activity as far as frames and kernel alone tell (no program text is at hand yet)."""
    kernel = readings.get((item.facts["pid"], item.facts["look"], AFTER, thread.tid)) or KernelView()
    return activity_of(thread, None, kernel, (native or {}).get(item.facts["pid"])).name


def _processes_of_interest(raw: Raw, members: Iterable[JobProcess]) -> list[_Process]:
    """The processes that ranks wait for, which decide only there: workers of data loaders, and any other children."""
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


def _short_of(raw: Raw, confirm_s: float, without_waiting_s: float | None) -> float | None:
    """How many seconds are still to pass until every waiting rank has stood still for `confirm_s`.

    None if there is nothing to confirm: one of them moved, or all have waited long enough. Where none waits, it is what
    the caller says.
    """
    rules, readings, native = frame_rules(), readings_by_look(raw), native_frames(raw)
    waited: list[float] = []
    for item, thread in _main_threads(raw, 2):
        pid, tid = item.facts["pid"], thread.tid
        activity = _activity(readings, item, thread, native)
        if activity not in rules.waits_for_peers:
            continue
        then, now = readings.get((pid, 1, AFTER, tid)), readings.get((pid, 2, BEFORE, tid))
        if then and now and _got_on(rules.progress_shows_in(activity, now.wchan, thread.running), then, now):
            return None
        first = readings.get((pid, 1, BEFORE, tid))
        before_s = (first.blocked_s if first else None) or 0.0
        waited.append(before_s + item.facts["taken_s"] - _taken_s(raw, pid, 1))
    if not waited:
        return without_waiting_s
    return confirm_s - min(waited) if min(waited) < confirm_s else None


def _anybody_moved(raw: Raw) -> bool:
    """Whether a rank is elsewhere in its program than at the first look."""
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


def _read_sources(host: Host, raw: Raw) -> None:
    """The program texts behind the frames, each once.

    A frame names whatever file the job says; only Python source is read, so that no frame makes us keep a secret.
    """
    files: dict[str, None] = {}
    for item in raw.of(STACK):
        for thread in read_dump(item.data):
            files.update(dict.fromkeys(frame.file for frame in thread.frames if _is_source(frame)))
    for file in list(files)[:_SOURCE_LIMIT_FILES]:
        try:
            text = host.read(file, max_bytes=_SOURCE_LIMIT_BYTES)
        except HostError:
            continue  # a frame without text is still a frame: file and line are known
        raw.items.append(RawItem(SOURCE, text.data, text.source, {"file": file}))
