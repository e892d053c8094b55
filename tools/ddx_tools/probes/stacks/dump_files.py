"""Reads stack dumps from the user: py-spy text or JSON, one or several ranks per file, data-loader workers included.

Kernel readings of these processes may be in the same files or beside them: output of `ps` or `cat /proc/PID/wchan`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from ddx_tools.analysis.collectives.stacks.main_threads import BEFORE, STACK, THREADS
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.rank_names import rank_of_name
from ddx_tools.parsers.launch.process_table import ProcessFacts, parse_process_text
from ddx_tools.parsers.python.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.parsers.python.pyspy_text import parse_pyspy_text, parts_by_rank
from ddx_tools.sources.host import Host
from ddx_tools.sources.intake import intake_of
from ddx_tools.sources.kinds import PROCESS_BYTES, STACK_BYTES, TextKind
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"


def read_dump(data: bytes) -> list[ThreadStack]:
    """Return the threads of a py-spy dump, text or JSON. Raises UnreadableInput for other bytes."""
    if data.lstrip()[:1] == b"[":
        return parse_pyspy(data)
    threads = parse_pyspy_text(data.decode("utf-8", "replace"))
    if not threads:
        raise UnreadableInput("not a py-spy dump", "Take one: py-spy dump --pid PID > rank3.txt")
    return threads


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the dumps among the given files and directories to `raw`; ignore other files.

    The rank comes from the file name (`rank3.txt`), from the words above each of several pasted dumps (`rank 3:`), or
    from the command line. Several dumps of one process are samples, in file order. Their times are unknown, so waits
    have no length.
    """
    taken = intake_of(host, paths)
    looks: Counter[tuple[int, int]] = Counter()
    kernel: dict[int, ProcessFacts] = {}
    sources: dict[int, str] = {}
    for text in taken.of(TextKind.STACKS, TextKind.PROCESSES):
        facts = parse_process_text(text.head[:PROCESS_BYTES].decode("utf-8", "replace"))
        kernel |= {pid: seen.over(kernel.get(pid)) for pid, seen in facts.items()}
        sources |= dict.fromkeys(facts, text.source)
        if TextKind.STACKS in text.kinds:
            _add(raw, text, taken.beginning(text, STACK_BYTES), looks)
    for item in list(raw.of(STACK)):
        if seen := kernel.get(item.facts["pid"]):
            raw.items.append(_reading(item, seen, sources[seen.pid]))
    raw.searched.append(f"{len(taken.materials)} files: {len(raw.of(STACK))} stack dumps")


def _add(raw: Raw, text: Material, data: bytes, looks: Counter[tuple[int, int]]) -> None:
    """Add the processes of one file: ranks, each with its data-loader workers.

    `above`: how many lines precede a dump in a file with several ranks; only these lines say whose dump it is.
    """
    named = rank_of_name(text.name)
    if data.lstrip()[:1] == b"[":
        parts = [(named, data)]
    else:
        told = parts_by_rank(data.decode("utf-8", "replace"))
        # The name of a file with a single rank counts more: somebody named the dump.
        parts = [(named if len(told) == 1 and named is not None else rank, part.encode()) for rank, part in told]
    many_ranks = len({rank for rank, _ in parts}) > 1
    begins = 0
    for rank, part in parts:
        above = begins if many_ranks else None
        begins += part.count(b"\n")
        threads = read_dump(part)
        workers = {thread.pid for thread in threads if any(frame.module == _WORKER_LOOP for frame in thread.frames)}
        mains = {thread.pid for thread in threads} - workers
        if rank is None or len(mains - {0}) > 1:
            many = len(mains) > 1
            raw.problems.append(
                f"{text.path}: cannot determine which rank {'each process' if many else 'it'} is. Write `rank 0:` "
                "above each dump, or name the files of single ranks rank0.txt, rank1.txt, …"
            )
            continue
        for pid in sorted(mains | workers):
            looks[rank, pid] += 1
            role = "dataloader_worker" if pid in workers else "rank"
            facts = {"pid": pid, "rank": rank, "role": role, "look": looks[rank, pid], "taken_s": None, "above": above}
            raw.items.append(RawItem(STACK, part, text.source, facts))


def _reading(item: RawItem, seen: ProcessFacts, source: str) -> RawItem:
    """The kernel reading of a dumped process, in the form of a live host's answer."""
    thread: Mapping[str, object] = {"tid": seen.pid, "state": seen.state, "wchan": seen.wchan}
    facts = {key: item.facts[key] for key in ("pid", "rank", "role", "look")}
    return RawItem(THREADS, json.dumps({"threads": [thread]}).encode(), source, {**facts, "phase": BEFORE})
