"""Stack dumps that somebody brought: files of py-spy's text or JSON, one rank each, its data workers with it.

What the kernel says of these processes may stand in the same files or beside them: a `ps`, a `cat /proc/PID/wchan`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from ddx_tools.errors import HostError, UnreadableInput
from ddx_tools.formats.fr_origin import rank_of_name
from ddx_tools.formats.process_text import ProcessFacts, parse_process_text
from ddx_tools.formats.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.formats.pyspy_text import commands_of, looks_like_pyspy_text, parse_pyspy_text
from ddx_tools.hosts.base import Host
from ddx_tools.probe import Raw, RawItem
from ddx_tools.stacks.items import BEFORE, STACK, THREADS

_MAX_BYTES = 8 << 20
_MAX_FILES = 10_000
_HEAD_BYTES = 4096
_TEXT_BYTES = 64 << 10
"""Texts that are longer are logs, not what somebody pasted of a process."""
_RANK_OPTION = re.compile(r"(?:^|\s)--(?:global[-_])?rank[= ](\d{1,7})(?!\S)")
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"


def read_dump(data: bytes) -> list[ThreadStack]:
    """The threads of a dump in either form. Raises UnreadableInput if the bytes are neither."""
    if data.lstrip()[:1] == b"[":
        return parse_pyspy(data)
    threads = parse_pyspy_text(data.decode("utf-8", "replace"))
    if not threads:
        raise UnreadableInput("not a py-spy dump", "Take one: py-spy dump --pid PID > rank3.txt")
    return threads


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the dumps among some files and directories to `raw`; other files are left alone.

    The rank is what the file's name says (`rank3.txt`). Several files of one rank are looks, in the order of
    their names. Nothing says when they were taken, so a wait has no length.
    """
    files = list(dict.fromkeys(file for path in paths for file in host.files_below(path)))
    looks: Counter[tuple[int, int]] = Counter()
    kernel: dict[int, ProcessFacts] = {}
    sources: dict[int, str] = {}
    for path in files[:_MAX_FILES]:
        try:
            data, source = _read(host, path)
        except HostError:
            continue  # the probes of logs and records name files that cannot be read
        facts = parse_process_text(data[:_TEXT_BYTES].decode("utf-8", "replace"))
        kernel |= {pid: seen.over(kernel.get(pid)) for pid, seen in facts.items()}
        sources |= dict.fromkeys(facts, source or path)
        if _is_dump(data):
            _add(raw, data, path, source or path, looks)
    for item in list(raw.of(STACK)):
        if seen := kernel.get(item.facts["pid"]):
            raw.items.append(_reading(item, seen, sources[seen.pid]))
    raw.searched.append(f"{min(len(files), _MAX_FILES)} files: {len(raw.of(STACK))} stack dumps")


def _add(raw: Raw, data: bytes, path: str, source: str, looks: Counter[tuple[int, int]]) -> None:
    """The processes of one file: a rank, and workers of its data loader."""
    threads = read_dump(data)
    workers = {thread.pid for thread in threads if any(frame.module == _WORKER_LOOP for frame in thread.frames)}
    mains = {thread.pid for thread in threads} - workers
    rank = _rank(path, data, mains)
    if rank is None or len(mains - {0}) > 1:
        many = len(mains) > 1
        raw.problems.append(
            f"{path}: nothing says which rank {'each process' if many else 'it'} is. "
            "Name the files of single ranks rank0.txt, rank1.txt, …"
        )
        return
    for pid in sorted(mains | workers):
        looks[rank, pid] += 1
        role = "dataloader_worker" if pid in workers else "rank"
        facts = {"pid": pid, "rank": rank, "role": role, "look": looks[rank, pid], "taken_s": None}
        raw.items.append(RawItem(STACK, data, source, facts))


def _rank(path: str, data: bytes, mains: set[int]) -> int | None:
    """The rank that the file's name says, or the command line of its only rank."""
    named = rank_of_name(path)
    if named is not None or data.lstrip()[:1] == b"[":
        return named
    commands = commands_of(data.decode("utf-8", "replace"))
    told = {option[1] for pid in mains if (option := _RANK_OPTION.search(commands.get(pid, "")))}
    return int(told.pop()) if len(told) == 1 else None


def _reading(item: RawItem, seen: ProcessFacts, source: str) -> RawItem:
    """What the kernel says of a dumped process, in the form of the host's own answer."""
    thread: Mapping[str, object] = {"tid": seen.pid, "state": seen.state, "wchan": seen.wchan}
    facts = {key: item.facts[key] for key in ("pid", "rank", "role", "look")}
    return RawItem(THREADS, json.dumps({"threads": [thread]}).encode(), source, {**facts, "phase": BEFORE})


def _read(host: Host, path: str) -> tuple[bytes, str]:
    head = host.read(path, max_bytes=_HEAD_BYTES)
    if not head.truncated or not _may_be_dump(head.data):
        return head.data, head.source
    whole = host.read(path, max_bytes=_MAX_BYTES)
    return whole.data, whole.source


def _may_be_dump(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" or b"Process " in head or b"/proc/" in head or b"wchan" in head.lower()


def _is_dump(data: bytes) -> bool:
    if data.lstrip()[:1] != b"[":
        return looks_like_pyspy_text(data.decode("utf-8", "replace"))
    try:
        return any(thread.frames for thread in parse_pyspy(data))
    except UnreadableInput:
        return False
