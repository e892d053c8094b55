"""Captures the machine that a job runs on, read-only: the queries and their order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import DdxError, HostError, NotPermitted, NotRecorded
from ddx_tools.model.files.names import shown
from ddx_tools.parsers.launch.launch_command import meeting_of
from ddx_tools.parsers.launch.launchers import Job, find_jobs
from ddx_tools.probes.host.text_rows import fact_rows, goes_on, says_something
from ddx_tools.sources.host import Host, Reply
from ddx_tools.sources.intake import Intake, intake_of
from ddx_tools.sources.kinds import TextKind
from ddx_tools.sources.material import Material
from ddx_tools.sources.raw import Raw, RawItem, Rows, merge_rows

PROCESSES, INTERFACES, NVML, NAMES = "processes", "interfaces", "nvml", "host_name"
NVML_LATER = "nvml_later"
"""A second reading of the GPUs, for the bytes that NVLink carried in between."""

_MOST_RANKS = 64
_KERNEL_LOG_BYTES = 8 << 20
_NAME_BYTES = 256
_HOST_NAME = re.compile(r"[A-Za-z][A-Za-z0-9.-]{0,250}")
_OF_PROCESS = ("limits", "status", "uid_map")
_CONTROLLERS = {
    "memory": (
        "memory.max", "memory.current", "memory.events",
        "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.failcnt", "memory.oom_control",
        "memory.stat",
    ),
    "cpu": ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"),
    "pids": ("pids.max", "pids.current"),
}  # fmt: skip
_CGROUP = re.compile(r":\d{1,4}:(?P<controllers>[\w,=-]{0,200}):(?P<path>/.{0,600})$", re.M)
_MOST_CGROUPS = 24
_NAMESPACE = re.compile(r"/proc/(?P<pid>\d{1,10}|self)/ns/(?P<kind>mnt|net)['\u2019] -> ['\u2018](?P<id>\w+:\[\d+\])")
_DISPLAY_OR_ACCELERATOR = re.compile(r"^(?P<device>/sys/bus/pci/devices/.{1,40})/class:0x(?:0300|0302|1200)", re.M)
_NETWORK = re.compile(r"^(?P<device>/sys/bus/pci/devices/.{1,40})/class:0x(?:0200|0207)", re.M)


def look(host: Host, pids: Sequence[int], interval_s: float) -> Raw:
    """Capture this machine, for the ranks of the job on it, or for the given processes and their job.

    Counters are read twice, `interval_s` apart; 0 reads them once.
    """
    asking = HostQueries(host)
    jobs = _jobs(asking, pids)
    subjects = _subjects(jobs, pids)
    # A launcher that waits for other hosts has no rank yet, but its connection shows why it waits.
    connected = bool(jobs or subjects)
    cgroups, other_net = _process_files(asking, subjects)
    devices = _rdma_ports(asking)
    _counters(asking, cgroups, devices, connected=connected, first=True)
    asking.ask("memory", lambda: host.read("/proc/meminfo"))
    _kernel_log(asking)
    _names(asking, jobs)
    _pci(asking)
    linked = _gpus(asking)
    if interval_s > 0:
        host.pause(interval_s)
        _counters(asking, cgroups, devices, connected=connected, first=False)
        if linked and connected:
            asking.ask("GPUs", host.gpus, NVML_LATER, absent=False)
    for pid in other_net:
        words = f"runs in another network namespace: `nsenter -t {pid} -n ddx host {pid}` captures it from inside"
        asking.unavailable(f"network of process {pid}", words)
    if asking.not_recorded and all(item.kind == PROCESSES for item in asking.raw.items):
        raise asking.not_recorded
    processes = "1 process" if len(subjects) == 1 else f"{len(subjects)} processes"
    whom = f"{processes} of the job" if subjects else "no process of a job: the limits are those of ddx itself"
    asking.raw.searched.append(f"this machine, for {whom}")
    return asking.raw


def _jobs(asking: HostQueries, pids: Sequence[int]) -> list[Job]:
    """The jobs in question, according to the process table."""
    reply = asking.ask("processes", asking.host.processes, PROCESSES)
    if reply is None:
        return []
    asking.raw.items[-1].facts["pids"] = list(pids)
    try:
        return jobs_meant(find_jobs(json.loads(reply.data)), pids)
    except (ValueError, DdxError):  # a damaged bundle
        return []


def _subjects(jobs: Sequence[Job], pids: Sequence[int]) -> list[int]:
    """The processes whose limits matter: the ranks of the jobs in question, else the pids themselves."""
    ranks = [member.pid for job in jobs for member in job.live if member.pid]
    return list(dict.fromkeys([*ranks, *(pid for pid in pids if not jobs)]))[:_MOST_RANKS]


def jobs_meant(jobs: Sequence[Job], pids: Sequence[int]) -> list[Job]:
    """Return the jobs that these processes belong to; without pids, all jobs that run here."""
    return [job for job in jobs if not pids or any(map(job.is_named_by, pids))]


# --- processes and their containers


def _process_files(asking: HostQueries, subjects: Sequence[int]) -> tuple[list[str], list[int]]:
    """Query limits and namespaces; return the cgroup directories, and the pids in another network namespace."""
    names = [str(pid) for pid in subjects] or ["self"]
    paths = [f"/proc/{name}/{file}" for name in dict.fromkeys([*names, "self"]) for file in _OF_PROCESS]
    asking.files("limits", [*paths, "/proc/sys/kernel/yama/ptrace_scope"])
    groups = asking.files("cgroups", [f"/proc/{name}/cgroup" for name in names])
    links = [f"/proc/{name}/ns/{kind}" for name in ("self", *names) for kind in ("mnt", "net")]
    namespaces = asking.run("namespaces", "stat", "-c", "%N", *dict.fromkeys(links))
    elsewhere = _elsewhere(namespaces.data.decode("utf-8", "replace")) if namespaces else {}
    own_shm = [f"/proc/{pid}/root/dev/shm" for pid in elsewhere.get("mnt", [])]
    # If the job runs in a container, the container's /dev/shm counts, not the host's.
    asking.run("file systems", "env", "LC_ALL=C", "stat", "-f", *(own_shm or ["/dev/shm"]), "/tmp")
    return cgroup_directories(groups.data.decode("utf-8", "replace") if groups else ""), elsewhere.get("net", [])


def _elsewhere(text: str) -> dict[str, list[int]]:
    """One pid for each namespace other than our own, by kind of namespace."""
    found = {(item["kind"], item["pid"]): item["id"] for item in _NAMESPACE.finditer(text)}
    there: dict[tuple[str, str], int] = {}
    for (kind, pid), id_ in found.items():
        if pid != "self" and id_ != found.get((kind, "self"), id_):
            there.setdefault((kind, id_), int(pid))
    return {kind: [pid for (of, _), pid in there.items() if of == kind] for kind in ("mnt", "net")}


def cgroup_directories(text: str) -> list[str]:
    """Return the directories of these cgroups and of their parents: a limit in any of them applies.

    `text` is /proc/PID/cgroup as grep -H prints it. Inside a container, the path may be missing, but its root exists.
    """
    found: dict[str, None] = {}
    for line in _CGROUP.finditer(text):
        parts = [part for part in line["path"].split("/") if part not in ("", "..")]
        below = ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
        controllers = [name for name in line["controllers"].split(",") if name in _CONTROLLERS]
        roots = [f"/sys/fs/cgroup/{name}" for name in controllers]
        roots += ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] if not line["controllers"] else []
        found.update(dict.fromkeys(f"{root}/{path}".rstrip("/") for root in roots for path in below))
    return list(found)[: _MOST_CGROUPS * len(_CONTROLLERS)]


def _cgroup_files(directories: Sequence[str], *, counters: bool) -> list[str]:
    kinds = {"cpu": ("cpu.stat",)} if counters else _CONTROLLERS
    return [
        f"{directory}/{file}"
        for directory in directories
        for kind, files in kinds.items()
        if f"/cgroup/{kind}" in directory or not any(f"/cgroup/{name}" in directory for name in _CONTROLLERS)
        for file in files
    ]


# --- counters


def _counters(
    asking: HostQueries, cgroups: Sequence[str], ports: Sequence[str], *, connected: bool, first: bool
) -> None:
    """Query counters in both samples, and fixed values only in the first."""
    asking.files("cgroups", _cgroup_files(cgroups, counters=not first))
    asking.ask("interfaces", asking.host.interfaces, INTERFACES)
    asking.ask("TCP counters", lambda: asking.host.read("/proc/net/snmp"))
    counted = [f"{port}/{name}" for port in ports for name in ("counters", "hw_counters")]
    asking.files("RDMA counters", counted, below=True)
    if connected:
        asking.run("TCP connections", "ss", "-tinp")
        if first:
            asking.ask("neighbours", lambda: asking.host.read("/proc/net/arp"), absent=False)


def _rdma_ports(asking: HostQueries) -> list[str]:
    ports = asking.glob("/sys/class/infiniband/*/ports/*", "rdma", "no RDMA device in /sys/class/infiniband")
    if not ports:
        return []
    names = ("state", "phys_state", "rate", "link_layer", "gids", "gid_attrs/types", "gid_attrs/ndevs")
    asking.files("rdma", [f"{port}/{name}" for port in ports for name in names], below=True)
    asking.run("rdma MTU", "ibv_devinfo", "-v")
    return ports


# --- the machine


def _kernel_log(asking: HostQueries) -> None:
    """Query dmesg, or the journal if the kernel's buffer is restricted."""
    journal = ["journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-q"]
    for argv in (["dmesg"], journal):
        if asking.ask("kernel log", partial(_printed, asking.host, argv), absent=False):
            return
    if not asking.not_recorded:
        asking.unavailable("kernel log", "this user may read neither dmesg nor journalctl -k: run sudo ddx host")


def _printed(host: Host, argv: Sequence[str]) -> Reply:
    """The output of a command; empty output counts as no answer."""
    reply = host.run(argv, timeout_s=5.0, max_bytes=_KERNEL_LOG_BYTES)
    if not reply.data:
        raise NotPermitted(f"{argv[0]} prints nothing", "")
    return reply


def _names(asking: HostQueries, jobs: Sequence[Job]) -> None:
    """Query what the host's own name and the master's name resolve to, the way Gloo looks them up."""
    asking.ask("default route", lambda: asking.host.read("/proc/net/route"))
    try:
        # For a file in /proc/sys, the kernel allocates as much memory as the read asks for.
        reply = asking.host.read("/proc/sys/kernel/hostname", max_bytes=_NAME_BYTES)
    except HostError:
        return
    name = reply.data.decode("ascii", "replace").strip()
    if asking.ask("host name", lambda: asking.host.run(["getent", "ahosts", name], timeout_s=3.0), NAMES):
        asking.raw.items[-1].facts["name"] = name
    for peer in dict.fromkeys(_met_at(jobs)):
        # If the master is this very host, its name may resolve to loopback here.
        if _first_label(peer) != _first_label(name):
            question = partial(asking.host.run, ["getent", "ahosts", peer], timeout_s=3.0)
            if asking.ask("name of the meeting point", question, NAMES):
                asking.raw.items[-1].facts.update(name=peer, of="peer")


def _met_at(jobs: Sequence[Job]) -> Iterator[str]:
    """The host names, not addresses, in the rendezvous endpoints of multi-host launchers."""
    members = (member for job in jobs for member in job.members)
    for process in (member.process for member in members if member.role == "launcher"):
        meeting = meeting_of(process.words, process.env) if process else None
        host = (meeting.endpoint or "").rpartition(":")[0] if meeting else ""
        if _HOST_NAME.fullmatch(host) and host != "localhost":
            yield host


def _first_label(name: str) -> str:
    return name.partition(".")[0].lower()


def _pci(asking: HostQueries) -> None:
    """Query accelerators and network devices, their link widths, and how ACS and the IOMMU treat peer traffic."""
    devices = asking.glob("/sys/bus/pci/devices/*", "PCI", "no devices in /sys/bus/pci")
    classes = asking.files("PCI", [f"{device}/class" for device in devices])
    text = classes.data.decode("ascii", "replace") if classes else ""
    accelerators = [found["device"] for found in _DISPLAY_OR_ACCELERATOR.finditer(text)]
    chosen = accelerators + [found["device"] for found in _NETWORK.finditer(text)]
    names = ("class", "vendor", "current_link_width", "max_link_width")
    asking.files("PCI links", [f"{device}/{name}" for device in chosen for name in names])
    groups = asking.glob("/sys/kernel/iommu_groups/*/type", "IOMMU", "no IOMMU is in use on this machine")
    asking.files("IOMMU", groups)
    if accelerators:
        asking.run("ACS", "lspci", "-vvv", timeout_s=10.0)


def _gpus(asking: HostQueries) -> bool:
    """Query the GPUs; return whether NVLink counts the bytes that it carries."""
    reply = asking.ask("GPUs", asking.host.gpus, NVML)
    if not reply:
        return False
    asking.ask("driver", lambda: asking.host.read("/proc/driver/nvidia/version"))
    asking.run("fabric manager", "nv-fabricmanager", "--version")
    return b'"nvlink_sent_bytes"' in reply.data


# --- queries to a live machine: every answer is kept, and every missing answer is recorded

ANSWER = "answer"
UNAVAILABLE = "unavailable"

_FILES_PER_QUESTION = 1_000


class HostQueries:
    """The queries of one capture of a machine, and the raw material they fill."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.raw = Raw(host.name)
        self.not_recorded: NotRecorded | None = None

    def ask(self, what: str, question: Callable[[], Reply], kind: str = ANSWER, *, absent: bool = True) -> Reply | None:
        """Run a query on the host and keep its reply among the raw items under `kind`.

        None if the host gives no answer; unless `absent` is False, that is recorded as unavailable under the name
        `what`.
        """
        try:
            reply = question()
        except NotRecorded as error:
            self.not_recorded = self.not_recorded or error
            return None
        except HostError as error:
            if absent:
                self.unavailable(what, error.message)
            return None
        self.raw.items.append(RawItem(kind, reply.data, reply.source))
        return reply

    def run(self, what: str, *argv: str, timeout_s: float = 5.0) -> Reply | None:
        """Run a command and keep its output, including what it prints before it fails."""
        return self.ask(what, lambda: self.host.run(argv, timeout_s=timeout_s))

    def files(self, what: str, paths: Sequence[str], *, below: bool = False) -> Reply | None:
        """Read many small files at once, as `path:line`; missing and unreadable files are left out."""
        how = "-rsH" if below else "-sH"
        return self.run(what, "grep", how, "", *paths[:_FILES_PER_QUESTION]) if paths else None

    def glob(self, pattern: str, what: str, without: str) -> list[str]:
        """Return the matching paths; if there are none, record `without` as the reason."""
        try:
            found = self.host.glob(pattern)
        except NotRecorded as error:
            self.not_recorded = self.not_recorded or error
            return []
        if not found:
            self.unavailable(what, without)
        return found

    def unavailable(self, what: str, why: str) -> None:
        """Record that this machine, or this user, has no answer: that is neither good nor bad."""
        self.raw.items.append(RawItem(UNAVAILABLE, b"", "", {"what": what, "why": why}))


# --- files with texts about machines, recognised by content; all other files are ignored

TEXT = "host_text"
_HEAD_BYTES = 64 << 10
"""How much of a long file decides whether it is a text about a machine: gigabytes of job logs may lie beside it."""
_PART_BYTES = 8 << 20
_ALL_BYTES = 64 << 20
"""How much is read of all long texts together; of any further ones, only the beginning."""
_WHY = "What it says about the machine is unknown."


def read_files(host: Host, paths: Sequence[str]) -> Raw:
    """Capture those of the user's files that hold output about a machine, such as `dmesg`."""
    raw = Raw(host.name)
    taken = intake_of(host, paths)
    taken.note_gaps(raw, _WHY)
    left = _ALL_BYTES
    for material in taken.of(TextKind.MACHINE):
        try:
            left -= _take(raw, taken, material, left)
        except HostError as error:
            raw.failed(shown(material.path), error, _WHY)
    raw.searched.append(f"{len(taken.materials)} files: {len(raw.of(TEXT))} texts about machines")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _take(raw: Raw, taken: Intake, text: Material, left: int) -> int:
    """Keep a file if it contains facts; return how many bytes were kept. Raises HostError."""
    head, tail = text.head, b""
    if text.cut or len(head) > _HEAD_BYTES:
        if not goes_on(head[:_HEAD_BYTES]):
            return 0
        if left <= 0:
            head = head[:_HEAD_BYTES]
            problem = f"only its first {_HEAD_BYTES >> 10} KiB were read; name only this file to read more."
            raw.problems.append(f"{shown(text.path)}: {problem}")
        elif text.cut and (head := taken.beginning(text, 2 * _PART_BYTES)) and len(head) == 2 * _PART_BYTES:
            head, tail = head[:_PART_BYTES], taken.end(text, _PART_BYTES)
            raw.problems.append(f"{shown(text.path)}: only its first and last {_PART_BYTES >> 20} MiB were read.")
    for part, data in (("head", head), ("tail", tail)):
        # A long text that looks like one is not read twice to find out that it contains no facts.
        if data and (tail or says_something(data)):
            raw.items.append(RawItem(TEXT, data, text.source, {"path": text.name, "part": part}))
    return len(head) + len(tail) if len(head) > _HEAD_BYTES else 0


def text_rows(raw: Raw) -> Rows:
    """Return the rows of `host_facts`. The host stays NULL if neither the text nor the file name gives it."""
    parts = []
    for item in raw.of(TEXT):
        rows = fact_rows(item.data, item.source, item.facts["path"])
        for row in rows:
            row["host"] = row["host"] or raw.known_host
            # The lines of a tail are counted from its beginning, so the file's line numbers are unknown.
            row["source_line"] = None if item.facts["part"] == "tail" else row["source_line"]
        parts.append({"host_facts": rows})
    return merge_rows(parts)
