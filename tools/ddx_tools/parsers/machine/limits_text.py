"""Reads limits and memory: ulimit (bash, zsh), /proc/PID/limits, prlimit, free, /proc/meminfo, a cgroup's
memory.events.

    max locked memory           (kbytes, -l) 64
    Max locked memory         65536                65536                bytes
    oom_kill 1

Topics: `limit` (soft limits; None is unlimited), `memory` (the host's bytes), `cgroup` (its memory counters).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer, size_bytes

NEEDLES = ("locked memory", "locked-in", "MEMLOCK", "MemTotal:", "Mem:", "oom_kill ", "ulimit -", "open files")

_NAMES = {
    "l": "locked_memory",
    "n": "open_files",
    "u": "processes",
    "v": "address_space",
    "m": "resident",
    "s": "stack",
    "c": "core",
}
_BYTES = {"locked_memory", "address_space", "resident", "stack", "core"}
_BASH = re.compile(
    r"\s*[a-z][a-z /()-]{2,40}?\s+\((?:(?P<unit>[\w -]{1,30}), )?-(?P<flag>[a-zA-Z])\)"
    r"\s+(?P<value>\d{1,19}|unlimited)\s*$"
)
_ZSH = re.compile(
    r"\s*-(?P<flag>[a-z]): [a-z][a-z /()-]{2,40}?(?:\((?P<unit>\w{1,20})\))?\s+(?P<value>\d{1,19}|unlimited)\s*$"
)
_PROC = re.compile(
    r"\s*Max (?P<name>locked memory|open files|processes|address space|stack size|core file size)"
    r"\s+(?P<value>\d{1,19}|unlimited)"
    r"\s+(?P<hard>\d{1,19}|unlimited)(?:\s+(?P<unit>\w{1,20}))?\s*$"
)
_PROC_NAMES = {"stack size": "stack", "core file size": "core"}
_PRLIMIT = re.compile(
    r"\s*(?P<name>MEMLOCK|NOFILE|NPROC|AS)\s.{0,80}?\s(?P<value>\d{1,19}|unlimited)\s+(?P<hard>\d{1,19}|unlimited)(?:\s+\w{1,20})?\s*$"
)
_PRLIMIT_NAMES = {"MEMLOCK": "locked_memory", "NOFILE": "open_files", "NPROC": "processes", "AS": "address_space"}
_SYSTEMD = re.compile(r"\s*LimitMEMLOCK(?:Soft)?=(?P<value>\d{1,19}[KMGTPE]?|infinity)(?::\S{1,30})?\s*$")
"""A line of a unit file or `systemctl show`: how much memory a daemon and its children may lock."""
_ONE = re.compile(r"ulimit (?:-[HS] )?-(?P<flag>[lnuvmsc])\s*$")
_VALUE = re.compile(r"\s*(?P<value>\d{1,19}|unlimited)\s*$")

_FREE = re.compile(r"\s*Mem:\s+(?P<cells>\S.{0,200})$")
_FREE_UNITS = {"-b": "", "-k": "K", "-m": "M", "-g": "G"}
_MEMINFO = re.compile(
    r"\s*(?P<name>MemTotal|MemFree|MemAvailable|Shmem|Mlocked|Committed_AS|CommitLimit):\s+(?P<kb>\d{1,18}) kB\s*$"
)
_MEMINFO_NAMES = {
    "MemTotal": "total_bytes",
    "MemAvailable": "available_bytes",
    "MemFree": "free_bytes",
    "Shmem": "shared_bytes",
}
_EVENT = re.compile(
    r"\s*(?P<name>low|high|max|oom|oom_kill|oom_group_kill|under_oom|oom_kill_disable) (?P<value>\d{1,18})\s*$"
)


def read_limits(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield limits, the host's memory, and cgroup counters."""
    memory: HostFact | None = None
    events: HostFact | None = None
    for line in lines:
        if limit := _limit(line):
            yield limit
        elif found := _MEMINFO.match(line.text):
            if memory is None or found["name"] == "MemTotal":
                yield from (memory,) if memory else ()
                memory = HostFact("memory", None, line, {})
            if name := _MEMINFO_NAMES.get(found["name"]):
                memory.values[name] = int(found["kb"]) << 10
        elif found := _EVENT.match(line.text):
            if events is None or found["name"] in events.values:
                yield from (events,) if events and "oom_kill" in events.values else ()
                events = HostFact("cgroup", _path(line.command), line, {})
            events.values[found["name"]] = int(found["value"])
            if found["name"] == "oom_kill":
                events = HostFact("cgroup", events.subject, line, events.values)
        elif fact := _free(line):
            yield fact
    if memory:
        yield memory
    if events and "oom_kill" in events.values:
        yield events


def _limit(line: TextLine) -> HostFact | None:
    text = line.text
    if found := _BASH.match(text) or _ZSH.match(text):
        name = _NAMES.get(found["flag"])
        return _limit_fact(line, name, found["value"], found["unit"] or "") if name else None
    if found := _PROC.match(text):
        name = _PROC_NAMES.get(found["name"], found["name"].replace(" ", "_"))
        return _limit_fact(line, name, found["value"], "bytes")
    if found := _PRLIMIT.match(text):
        return _limit_fact(line, _PRLIMIT_NAMES[found["name"]], found["value"], "bytes")
    if found := _SYSTEMD.match(text):
        return _limit_of_unit(line, found["value"])
    asked = _ONE.match(line.command or "")
    if asked and (found := _VALUE.match(text)):
        name = _NAMES[asked["flag"]]
        return _limit_fact(line, name, found["value"], "kbytes")
    return None


def _limit_fact(line: TextLine, name: str, value: str, unit: str) -> HostFact:
    number = integer(value)
    values: dict[str, Any] = {"unlimited": value == "unlimited"}
    if number is not None and name in _BYTES:
        # bash and zsh count memory in KiB (in bash also stack and core, as their units show)
        values["limit_bytes"] = number << 10 if unit.startswith(("kb", "KB")) else number
    elif number is not None:
        values["limit"] = number
    return HostFact("limit", name, line, values)


def _limit_of_unit(line: TextLine, value: str) -> HostFact:
    size = None if value in ("infinity", str(2**64 - 1)) else size_bytes(value)
    return HostFact("limit", "locked_memory", line, {"unlimited": size is None, "of": "unit", "limit_bytes": size})


def _free(line: TextLine) -> HostFact | None:
    found = _FREE.match(line.text)
    cells = found["cells"].split() if found else []
    if len(cells) < 3:
        return None
    asked = (line.command or "").split()
    unit = next((_FREE_UNITS[word] for word in asked if word in _FREE_UNITS), None)
    if unit is None:
        # Without the command, only figures with a unit (-h) can be read.
        unit = "K" if asked[:1] == ["free"] else "?"
    sizes = [None if cell.isdigit() and unit == "?" else size_bytes(cell, unit.strip("?")) for cell in cells]
    if sizes[0] is None:
        return None
    values = {"total_bytes": sizes[0], "used_bytes": sizes[1], "free_bytes": sizes[2]}
    # procps 3.3.10 and later have buff/cache and available.
    return HostFact("memory", None, line, values | {"available_bytes": sizes[5] if len(cells) == 6 else None})


def _path(command: str | None) -> str | None:
    found = re.search(r"/sys/fs/cgroup\S{0,300}", command or "")
    return found[0] if found else None
