"""Stack dumps that somebody brought: files of py-spy's text or JSON, one rank each."""

from __future__ import annotations

from collections import Counter

from ddx_tools.errors import HostError, UnreadableInput
from ddx_tools.formats.fr_origin import rank_of_name
from ddx_tools.formats.pyspy_json import ThreadStack, parse_pyspy
from ddx_tools.formats.pyspy_text import looks_like_pyspy_text, parse_pyspy_text
from ddx_tools.hosts.base import Host
from ddx_tools.probe import Raw, RawItem

STACK = "stack"
_MAX_BYTES = 8 << 20
_MAX_FILES = 10_000


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
    looks: Counter[int] = Counter()
    for path in files[:_MAX_FILES]:
        try:
            data, source = _read(host, path)
        except HostError:
            continue  # the probes of logs and records name files that cannot be read
        if not _is_dump(data):
            continue
        threads = read_dump(data)
        rank = rank_of_name(path)
        pids = {thread.pid for thread in threads} - {0}
        if rank is None or len(pids) > 1:
            raw.problems.append(
                f"{path}: nothing says which rank {'each process' if len(pids) > 1 else 'it'} is. "
                "Name the files of single ranks rank0.txt, rank1.txt, …"
            )
            continue
        looks[rank] += 1
        facts = {"pid": min(pids, default=0), "rank": rank, "role": "rank", "look": looks[rank], "taken_s": None}
        raw.items.append(RawItem(STACK, data, source or path, facts))
    raw.searched.append(f"{min(len(files), _MAX_FILES)} files: {len(raw.items)} stack dumps")


def _read(host: Host, path: str) -> tuple[bytes, str]:
    head = host.read(path, max_bytes=4096)
    if not head.truncated or not _may_be_dump(head.data):
        return head.data, head.source
    whole = host.read(path, max_bytes=_MAX_BYTES)
    return whole.data, whole.source


def _may_be_dump(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" or b"Process " in head


def _is_dump(data: bytes) -> bool:
    if data.lstrip()[:1] != b"[":
        return looks_like_pyspy_text(data.decode("utf-8", "replace"))
    try:
        return any(thread.frames for thread in parse_pyspy(data))
    except UnreadableInput:
        return False
