"""Reads files in /proc and /sys as printed by `grep -H "" FILE…`, `path:line`: limits, cgroups, processes, IOMMU, PCI.

    /proc/4711/limits:Max locked memory         8388608              8388608              bytes
    /sys/fs/cgroup/job/memory.max:209715200
    /sys/fs/cgroup/memory/job/memory.oom_control:oom_kill 1
    /sys/bus/pci/devices/0000:3b:00.0/current_link_width:8

Topics: `limit`, `cgroup` (memory), `cpu_quota`, `pids`, `process`, `ptrace`, `pci_device`, `pcie_link`, and `kernel`
with the subject `iommu`. Sources: proc(5), Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst, LSM/Yama.rst,
Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups of Linux 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer
from ddx_tools.parsers.machine.limits_text import read_limits

NEEDLES = (
    "/limits:Max ", "/status:Cpus_allowed_list:", "ptrace_scope:", "/sys/fs/cgroup/", "/sys/bus/pci/devices/",
    "/sys/kernel/iommu_groups/",
)  # fmt: skip

_NAMES = (
    r"limits|status|uid_map|ptrace_scope|memory\.[a-z_.]{2,40}|cpu\.[a-z_.]{2,30}|pids\.(?:max|current)|type|class|vendor"
    r"|(?:current|max)_link_(?:width|speed)"
)
_LINE = re.compile(rf"\s{{0,8}}(?P<directory>/(?:proc|sys)/[^\0]{{1,1000}})/(?P<name>{_NAMES}):(?P<value>.{{0,300}})$")
_PID = re.compile(r"/proc/(?P<pid>\d{1,10}|self)$")
_UNLIMITED_V1 = 1 << 62
"""cgroup v1 writes the largest multiple of a page for "no limit"."""
_SYS_PTRACE = 19
"""The number of CAP_SYS_PTRACE, from linux/capability.h."""
_WHOLE_MAP = "0 0 4294967295"
"""The id map of the host's user namespace: every id maps to itself."""
_CAT = re.compile(
    r"(?:sudo )?(?:cat|head|tail) (?:-n ?1 )?"
    r"(?P<file>/sys/fs/cgroup/(?:[\w.-]{1,200}/){0,20}memory\.(?:max|limit_in_bytes|current))"
)
"""Files with a single number, which means nothing without the file's name. limits_text.py reads files with their own
names."""
_TRANSLATED, _PASSED = {"DMA", "DMA-FQ"}, {"identity"}
_NVIDIA = "0x10de"
_GPU_CLASSES, _NIC_CLASSES = ("0x0300", "0x0302", "0x1200"), ("0x0200", "0x0207")


@dataclass
class _Directory:
    """The files of one directory, each with its lines."""

    path: str
    files: dict[str, list[tuple[TextLine, str]]] = field(default_factory=dict)

    def first(self, name: str) -> str | None:
        """Return the first line of a file; None if it was not read."""
        return self.files[name][0][1].strip() if name in self.files else None

    def line(self, *names: str) -> TextLine:
        """Return where a value was read: the first line of the first named file that the text contains.

        At least one of the files must have been read.
        """
        return next(self.files[name][0][0] for name in names if name in self.files)

    def counters(self, name: str) -> dict[str, int]:
        """Return the counters in a file with lines `name number`."""
        pairs = (value.split() for _, value in self.files.get(name, []))
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and integer(pair[1]) is not None}


def read_kernel_files(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield the facts of every printed directory, in order; a directory printed twice counts as two readings."""
    for directory in _directories(lines):
        for read in _READERS:
            yield from read(directory)
    yield from _iommu(lines)


def _directories(lines: Sequence[TextLine]) -> Iterator[_Directory]:
    open_: dict[tuple[str | None, str], _Directory] = {}
    last: tuple[str, str] | None = None
    for line in lines:
        found = _LINE.match(_with_its_name(line))
        if not found or found["directory"].startswith("/sys/kernel/iommu_groups"):
            continue
        path, name = found["directory"], found["name"]
        directory = open_.setdefault((line.host, path), _Directory(path))
        if name in directory.files and last != (path, name):
            yield directory
            directory = open_[line.host, path] = _Directory(path)
        directory.files.setdefault(name, []).append((line, found["value"]))
        last = path, name
    yield from open_.values()


def _with_its_name(line: TextLine) -> str:
    """A line of the single file printed by the command above it, in grep's form."""
    printed = _CAT.fullmatch(line.command or "")
    is_prompt = line.command is not None and line.text.endswith(line.command)
    return line.text if printed is None or is_prompt else f"{printed['file']}:{line.text}"


# --- processes


def _limits(directory: _Directory) -> Iterator[HostFact]:
    of = _PID.search(directory.path)
    lines = directory.files.get("limits", [])
    for line, value in lines if of else []:
        for fact in read_limits([TextLine(line.number, value, line.host)]):
            yield HostFact(fact.topic, fact.subject, line, fact.values | _pid(of))


def _pid(found: re.Match[str] | None) -> dict[str, int]:
    return {"pid": int(found["pid"])} if found and found["pid"].isdigit() else {}


def _process(directory: _Directory) -> Iterator[HostFact]:
    of = _PID.search(directory.path)
    if not of or "status" not in directory.files:
        return
    said = {name: rest.strip() for _, value in directory.files["status"] for name, _, rest in [value.partition(":")]}
    values: dict[str, Any] = dict(_pid(of))
    if allowed := said.get("Cpus_allowed_list"):
        values |= {"cpus": _count(allowed), "cpus_allowed": allowed}
    if re.fullmatch(r"[0-9a-f]{1,32}", capabilities := said.get("CapEff", "")):
        values["sys_ptrace"] = bool(int(capabilities, 16) >> _SYS_PTRACE & 1)
    if (uids := said.get("Uid", "").split()) and integer(uids[0]) is not None:
        values["uid"] = int(uids[0])
    if (mapping := directory.first("uid_map")) is not None:
        values["user_namespace"] = " ".join(mapping.split()) != _WHOLE_MAP
    yield HostFact("process", of["pid"], directory.line("status"), values)


def _count(ranges: str) -> int:
    """The number of CPUs in a list such as `0-3,8`."""
    ends = [part.split("-") for part in ranges.split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends if all(integer(one) is not None for one in end))


def _ptrace(directory: _Directory) -> Iterator[HostFact]:
    scope = integer(directory.first("ptrace_scope"))
    if scope is not None:
        yield HostFact("ptrace", None, directory.line("ptrace_scope"), {"scope": scope})


# --- cgroups


def _memory(directory: _Directory) -> Iterator[HostFact]:
    names = ("memory.max", "memory.limit_in_bytes", "memory.events", "memory.oom_control", "memory.current")
    if not any(name in directory.files for name in names):
        return
    limit = integer(directory.first("memory.max") or directory.first("memory.limit_in_bytes"))
    used = integer(directory.first("memory.current") or directory.first("memory.usage_in_bytes"))
    stat = directory.counters("memory.stat")
    idle = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    values: dict[str, Any] = directory.counters("memory.events") | directory.counters("memory.oom_control")
    if limit is not None and limit < _UNLIMITED_V1:
        values["limit_bytes"] = limit
    if used is not None:
        # Like kubelet: inactive file pages, which the kernel would drop first, count as free.
        values |= {"used_bytes": max(0, used - idle), "charged_bytes": used}
    values["limit_hits"] = integer(directory.first("memory.failcnt"))
    yield HostFact("cgroup", directory.path, _place_of_kills(directory, names), values)


def _place_of_kills(directory: _Directory, names: tuple[str, ...]) -> TextLine:
    counted = directory.files.get("memory.oom_control", []) + directory.files.get("memory.events", [])
    return next((line for line, value in counted if value.startswith("oom_kill ")), directory.line(*names))


def _cpu(directory: _Directory) -> Iterator[HostFact]:
    # cgroup v2 has both in one file: `max 100000` means no quota, like -1 in v1.
    quota, _, period = (directory.first("cpu.max") or "").partition(" ")
    most = integer(quota) or integer(directory.first("cpu.cfs_quota_us"))
    each = integer(period) or integer(directory.first("cpu.cfs_period_us"))
    stat = directory.counters("cpu.stat")
    if each is None and "nr_periods" not in stat:
        return
    values: dict[str, Any] = {"periods": stat.get("nr_periods"), "throttled": stat.get("nr_throttled")}
    values["cpus"] = most / each if most and each else None
    if (waited := stat.get("throttled_usec")) is not None:
        values["throttled_s"] = waited / 1e6
    elif (waited := stat.get("throttled_time")) is not None:
        values["throttled_s"] = waited / 1e9
    line = directory.line("cpu.max", "cpu.cfs_quota_us", "cpu.stat", "cpu.cfs_period_us")
    yield HostFact("cpu_quota", directory.path, line, values)


def _pids(directory: _Directory) -> Iterator[HostFact]:
    current, most = integer(directory.first("pids.current")), integer(directory.first("pids.max"))
    if current is not None and most:
        values = {"current": current, "most": most}
        yield HostFact("pids", directory.path, directory.line("pids.max"), values)


# --- devices


def _pci(directory: _Directory) -> Iterator[HostFact]:
    kind_of = directory.first("class")
    if "/bus/pci/devices/" not in directory.path or kind_of is None:
        return
    kind = "gpu" if kind_of.startswith(_GPU_CLASSES) else "network" if kind_of.startswith(_NIC_CLASSES) else None
    if kind is None:
        return
    bus = directory.path.rsplit("/", 1)[-1].lower()
    vendor = directory.first("vendor")
    if vendor is not None:
        yield HostFact("pci_device", bus, directory.line("class"), {"kind": kind, "nvidia": vendor == _NVIDIA})
    width, possible = integer(directory.first("current_link_width")), integer(directory.first("max_link_width"))
    if width and possible and possible < 255:  # virtual functions report 0 and 255
        values = {"kind": kind, "width": width, "possible": possible, "narrowed": width < possible}
        yield HostFact("pcie_link", bus, directory.line("current_link_width"), values)


_GROUP = re.compile(r"\s{0,8}/sys/kernel/iommu_groups/\d{1,6}/type:(?P<type>[\w-]{1,20})\s*$")


def _iommu(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact about how device groups are treated: the strictest mode, since a path between two devices meets it."""
    groups: dict[str, int] = {}
    place: TextLine | None = None
    for line in lines:
        if found := _GROUP.match(line.text):
            groups[found["type"]] = groups.get(found["type"], 0) + 1
            place = place if place and found["type"] not in _TRANSLATED else line
    if place:
        domain = "translated" if _TRANSLATED & set(groups) else "passthrough" if _PASSED & set(groups) else "other"
        yield HostFact("kernel", "iommu", place, {"domain": domain, "groups": groups, "enabled": True})


_READERS: tuple[Callable[[_Directory], Iterator[HostFact]], ...] = (
    _limits, _process, _ptrace, _memory, _cpu, _pids, _pci,
)  # fmt: skip
