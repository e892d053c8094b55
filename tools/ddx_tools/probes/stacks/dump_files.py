"""Reads stack dumps from the user: py-spy text or JSON, pystack text, core files; one or several ranks per file.

Data-loader workers are included. pystack also reads the core that a crashed process left: its role is `dead`, and how
it ended becomes an event like those of logs.

Kernel readings of these processes may be in the same files or beside them: output of `ps` or `cat /proc/PID/wchan`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from ddx_tools.analysis.collectives.stacks.main_threads import BEFORE, STACK, THREADS
from ddx_tools.model.diagnosis import Missing
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.kinds import FileKind
from ddx_tools.model.files.names import as_folders
from ddx_tools.model.files.rank_names import rank_of_name
from ddx_tools.parsers.launch.process_table import ProcessFacts, parse_process_text
from ddx_tools.parsers.python.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.parsers.python.pyspy_text import commands_of, parse_pyspy_text, parts_by_rank
from ddx_tools.parsers.python.pystack_text import is_pystack, parse_pystack, pystack_by_rank
from ddx_tools.probes.stacks.dump_ranks import DumpRanks, Unnamed, find_ranks
from ddx_tools.sources.host import UNKNOWN_HOST, Host, Reply, ask_together
from ddx_tools.sources.intake import Intake, intake_of
from ddx_tools.sources.kinds import PROCESS_BYTES, STACK_BYTES, TextKind
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem

Looks = Counter[tuple[int | None, int]]
"""How many dumps of a process there are so far, by its rank and pid."""
DEAD = "dead"
"""Role of a process that was read from the core file that it left."""
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_MOST_CORES, _CORES_AT_ONCE, _CORE_DEADLINE_S = 16, 2, 60.0
_NAME_THEM = "another launcher may start them otherwise: name the files rank0.txt, rank1.txt, … to be sure"
_CORE_UNREAD = "where its process was when it crashed is unknown"


def is_worker(thread: ThreadStack) -> bool:
    """Whether a thread runs the loop of a data-loader worker."""
    return any(frame.module == _WORKER_LOOP for frame in thread.frames)


def read_dump(data: bytes) -> list[ThreadStack]:
    """Return the threads of a dump: py-spy's text or JSON, pystack's text. Raises UnreadableInput for other bytes.

    A core whose stacks could not be read gives none.
    """
    if data.lstrip()[:1] == b"[":
        return parse_pyspy(data)
    text = data.decode("utf-8", "replace")
    threads = parse_pyspy_text(text)
    if not threads:
        processes = parse_pystack(text)
        threads = [thread for process in processes for thread in process.threads]
        if not processes:
            raise UnreadableInput("not a py-spy dump", "Take one: py-spy dump --pid PID > rank3.txt")
    return threads


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the dumps among the given files and directories to `raw`; ignore other files.

    The rank comes from the file name (`rank3.txt`), from the words above each of several pasted dumps (`rank 3:`), from
    the command line, or from other files (see `find_ranks`). Several dumps of one process are samples, in file order.
    Their times are unknown, so waits have no length.
    """
    taken = intake_of(host, paths)
    found = _found_ranks(taken)
    if found.by_pid:
        raw.searched.append(f"ranks of stack dumps: {found.how}")
    if found.inferred:
        raw.missing.append(
            Missing(what=f"which rank each stack dump is of: taken {found.how}", why_it_matters=_NAME_THEM)
        )
    looks: Looks = Counter()
    kernel: dict[int, ProcessFacts] = {}
    sources: dict[int, str] = {}
    for text in taken.of(TextKind.STACKS, TextKind.PROCESSES):
        facts = parse_process_text(text.head[:PROCESS_BYTES].decode("utf-8", "replace"))
        kernel |= {pid: seen.over(kernel.get(pid)) for pid, seen in facts.items()}
        sources |= dict.fromkeys(facts, text.source)
        if TextKind.STACKS in text.kinds:
            _add(raw, text, taken.beginning(text, STACK_BYTES), looks, rank_of_name(text.name), found.by_pid)
    _read_cores(host, raw, taken.of(FileKind.CORE), looks)
    for item in list(raw.of(STACK)):
        if seen := kernel.get(item.facts["pid"]):
            raw.items.append(_reading(item, seen, sources[seen.pid]))
    raw.searched.append(f"{len(taken.materials)} files: {len(raw.of(STACK))} stack dumps")


def _found_ranks(taken: Intake) -> DumpRanks:
    """The ranks of dumped processes that neither their file's name nor words above their dump state."""
    processes: dict[int, Unnamed] = {}
    some_stated = False
    for text in taken.of(TextKind.STACKS):
        if rank_of_name(text.name) is not None:
            some_stated = True
            continue
        data = taken.beginning(text, STACK_BYTES)
        decoded = data.decode("utf-8", "replace")
        is_stated = any(rank is not None for rank, _ in parts_by_rank(decoded))
        some_stated |= is_stated
        if not is_stated and (own := commands_of(decoded)):
            workers = {thread.pid for thread in read_dump(data) if is_worker(thread)}
            for pid, command in own.items():
                if pid not in workers:
                    files = processes[pid].files if pid in processes else ()
                    processes[pid] = Unnamed(command, (*files, text.path))
    return find_ranks(taken, processes, some_stated=some_stated)


def _read_cores(host: Host, raw: Raw, cores: Sequence[Material], dumps: Looks) -> None:
    """Add what pystack reads in core files."""

    def read(core: Material) -> Reply:
        return host.core_stacks(core.path, timeout_s=_CORE_DEADLINE_S)

    for core, reply in ask_together(read, cores[:_MOST_CORES], _CORES_AT_ONCE):
        if isinstance(reply, Reply):
            core.source = core.path if host.name == UNKNOWN_HOST else reply.source or core.path
            _add(raw, core, reply.data, dumps, _rank_of_core(core.name), {})
        else:
            raw.failed(core.path, reply, _CORE_UNREAD)
    if len(cores) > _MOST_CORES:
        raw.problems.append(
            f"{len(cores)} core files: {_MOST_CORES} were read. Name those of the ranks that failed first."
        )


def _rank_of_core(name: str) -> int | None:
    """The rank in a core's path; the numbers in `core.4242` and `core.python.0.4242` are others."""
    folder, _, file = as_folders(name).rpartition("/")
    return rank_of_name(name if "rank" in file else f"{folder}/core")


def _add(raw: Raw, text: Material, data: bytes, looks: Looks, named: int | None, by_pid: Mapping[int, int]) -> None:
    """Add the processes of one file: ranks, each with its data-loader workers, and dead ones.

    `named`: the rank in the file's name. `by_pid`: ranks of processes without any. `above`: how many lines precede a
    dump in a file with several ranks; only these lines say whose dump it is.
    """
    if data.lstrip()[:1] == b"[":
        parts = [(named, data)]
    else:
        decoded = data.decode("utf-8", "replace")
        told = pystack_by_rank(decoded) if is_pystack(decoded) else parts_by_rank(decoded)
        # The name of a file with a single rank counts more: somebody named the dump.
        parts = [(named if len(told) == 1 and named is not None else rank, part.encode()) for rank, part in told]
    many_ranks = len({rank for rank, _ in parts}) > 1
    begins = 0
    for rank, part in parts:
        begin, begins = begins, begins + part.count(b"\n")
        above = begin if many_ranks else None
        if _add_dead(raw, text, rank, part, begin, looks):
            continue
        threads = read_dump(part)
        workers = {thread.pid for thread in threads if is_worker(thread)}
        mains = {thread.pid for thread in threads} - workers
        if rank is None and (known := {pid: by_pid[pid] for pid in mains if pid in by_pid}):
            own = next(iter(known.values())) if len(known) == len(mains) == 1 else None
            for pid in sorted({*known, *(workers if own is not None else ())}):
                _add_process(raw, text, part, pid, known.get(pid, own), looks, is_worker=pid in workers, above=above)
            continue
        if rank is None or len(mains - {0}) > 1:
            many = len(mains) > 1
            raw.problems.append(
                f"{text.path}: cannot determine which rank {'each process' if many else 'it'} is. Write `rank 0:` "
                "above each dump, or name the files of single ranks rank0.txt, rank1.txt, …"
            )
            continue
        for pid in sorted(mains | workers):
            _add_process(raw, text, part, pid, rank, looks, is_worker=pid in workers, above=above)


def _add_process(
    raw: Raw,
    text: Material,
    part: bytes,
    pid: int,
    rank: int | None,
    seen: Looks,
    *,
    is_worker: bool,
    above: int | None,
) -> None:
    seen[rank, pid] += 1
    role = "dataloader_worker" if is_worker else "rank"
    facts = {"pid": pid, "rank": rank, "role": role, "look": seen[rank, pid], "taken_s": None, "above": above}
    raw.items.append(RawItem(STACK, part, text.source, facts))


def _add_dead(raw: Raw, text: Material, rank: int | None, part: bytes, above: int, dumps: Looks) -> bool:
    """Add the dead processes of a part of a file; return whether there were any. Their logs may tell their ranks."""
    dead = [process for process in parse_pystack(part.decode("utf-8", "replace")) if process.died]
    for process in dead:
        dumps[rank, process.pid] += 1
        facts = {"pid": process.pid, "rank": rank, "role": DEAD, "look": dumps[rank, process.pid], "taken_s": None}
        raw.items.append(RawItem(STACK, part, text.source, {**facts, "above": above}))
        raw.searched.append(f"{text.path}: pid {process.pid}: {process.says}")
    return bool(dead)


def _reading(item: RawItem, seen: ProcessFacts, source: str) -> RawItem:
    """The kernel reading of a dumped process, in the form of a live host's answer."""
    thread: Mapping[str, object] = {"tid": seen.pid, "state": seen.state, "wchan": seen.wchan}
    facts = {key: item.facts[key] for key in ("pid", "rank", "role", "look")}
    return RawItem(THREADS, json.dumps({"threads": [thread]}).encode(), source, {**facts, "phase": BEFORE})
