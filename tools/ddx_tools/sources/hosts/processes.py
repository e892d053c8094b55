"""The process table as far as it concerns distributed training, as JSON.

    {"host", "uid", "user",                          the host's name; the user that ddx runs as
     "now", "boot_time", "clock_ticks",              wall clocks in seconds since the epoch; ticks per second
     "processes": [{
        "pid", "ppid", "uid", "user", "name",        name: the kernel's comm (Linux) or the executable's name
        "cmdline": [...], "exe", "cwd",              arguments bounded and with secrets redacted
        "state",                                     letter as in /proc/<pid>/stat: R S D T t Z X I
        "create_time", "cpu_user_s", "cpu_system_s", "rss_bytes", "threads",
        "env": {...},                                allow-listed variables of the initial environment, redacted
        "fds": {"0", "1", "2"},                      targets of the standard streams
        "open_files", "open_files_limit",            number of open descriptors, and the soft limit (-1: none)
        "tcp": [[local port, remote port], ...],     established connections, if only they can show that
                                                     the process is a rank (see `_may_be_spawned_rank`)
        "listens": [port, ...],                      ports it listens on: of Python processes whose environment names
                                                     their rank, among which may be NCCL's RAS and torch's debug server
        "readable", "denied": [...]}]}               readable: the environment could be read

Every key is always present; unknown values are null. It covers Python processes, processes whose environment names a
rank, and their parents and descendants, and nothing else on the machine. Among processes that this user may not read,
only Python ones and relatives of ranks appear, with command line and state.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ddx_tools.redaction.structures import redact_argv, redact_environment
from ddx_tools.sources.hosts.tcp_connections import TcpConnections

_MAX_PROCESSES = 4_000
_MAX_ARGUMENTS = 100
_MAX_ARGUMENT_CHARS = 500

_STATE_LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_IDLE: "I",
}

_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID",
)  # fmt: skip
_PYTHON = re.compile(r"(?:^|/)python[\d.]*t?$", re.IGNORECASE)
_TITLED_PYTHON = re.compile(r"^(?:ray::|pt_)")

T = TypeVar("T")


def snapshot() -> bytes:
    """Take one snapshot, as JSON. A process that vanishes meanwhile is left out or has null fields."""
    looked = {look.pid: look for look in map(_look, psutil.process_iter()) if look}
    looked.pop(os.getpid(), None)
    processes = [_describe(look) for look in _relevant(looked)[:_MAX_PROCESSES]]
    connections = TcpConnections()
    for row in processes:
        if _may_be_spawned_rank(row, looked):
            row["tcp"] = _ask(partial(connections.of, row["pid"]))
        if _may_serve(row, looked):
            row["listens"] = _ask(partial(connections.listens, row["pid"]))
    report = {
        "host": socket.gethostname(),
        "uid": os.getuid(),
        "user": _ask(psutil.Process().username),
        "now": time.time(),
        "boot_time": psutil.boot_time(),
        "clock_ticks": os.sysconf("SC_CLK_TCK"),
        "processes": processes,
    }
    return _one_process_a_line(report).encode()


def _one_process_a_line(report: dict[str, Any]) -> str:
    """JSON with one process per line, so that `grep` works on it."""
    head = json.dumps({key: value for key, value in report.items() if key != "processes"})
    lines = ",\n".join(json.dumps(process) for process in report["processes"])
    return f'{head[:-1]}, "processes": [\n{lines}\n]}}\n'


@dataclass
class _Look:
    """The facts by which processes are selected."""

    process: psutil.Process
    pid: int
    ppid: int
    name: str
    cmdline: list[str]
    state: str | None
    env: dict[str, str] | None

    @property
    def is_python(self) -> bool:
        program = self.cmdline[0] if self.cmdline else self.name
        return bool(_PYTHON.search(program) or _TITLED_PYTHON.match(self.name) or _TITLED_PYTHON.match(program))

    @property
    def is_distributed(self) -> bool:
        return bool(self.env) and any(name in (self.env or {}) for name in _RANK_VARIABLES)


def _look(process: psutil.Process) -> _Look | None:
    try:
        with process.oneshot():
            state = _STATE_LETTERS.get(process.status())
            return _Look(
                process=process,
                pid=process.pid,
                ppid=process.ppid(),
                name=process.name(),
                cmdline=_ask(process.cmdline) or [],
                state=state,
                env=None if state == "Z" else _ask(process.environ),
            )
    except (psutil.Error, OSError):
        return None


def _relevant(looked: dict[int, _Look]) -> list[_Look]:
    """Python processes, ranks, parents and descendants of ranks; by pid."""
    distributed = {pid for pid, look in looked.items() if look.is_distributed}
    parents = {looked[pid].ppid for pid in distributed if looked[pid].ppid > 1}
    family = set(distributed)
    for pid in sorted(looked, key=lambda pid: _depth(pid, looked)):
        if looked[pid].ppid in family:
            family.add(pid)
    keep = family | parents | {pid for pid, look in looked.items() if look.is_python}
    # A dead child of a launcher has no command line and no environment, and another user's process has no environment:
    # they are recognised only as siblings of a rank.
    keep |= {pid for pid, look in looked.items() if look.env is None and look.ppid in parents}
    keep |= {pid for pid, look in looked.items() if look.state == "Z" and look.ppid in keep}
    return [looked[pid] for pid in sorted(keep) if pid in looked]


def _depth(pid: int, looked: dict[int, _Look]) -> int:
    """Number of known ancestors (bounded: a snapshot that is not atomic may hold a loop)."""
    depth = 0
    while (look := looked.get(pid)) and depth < 100:
        pid, depth = look.ppid, depth + 1
    return depth


def _describe(look: _Look) -> dict[str, Any]:
    process, readable = look.process, look.env is not None
    denied: list[str] = []
    with process.oneshot():
        cpu = _ask(process.cpu_times)
        memory = _ask(process.memory_info)
        uids = _ask(process.uids)
        row: dict[str, Any] = {
            "pid": look.pid,
            "ppid": look.ppid,
            "uid": uids.real if uids else None,
            "user": _ask(process.username),
            "name": look.name[:64],
            "cmdline": [word[:_MAX_ARGUMENT_CHARS] for word in redact_argv(look.cmdline)[:_MAX_ARGUMENTS]],
            "exe": None,
            "cwd": None,
            "state": look.state,
            "create_time": _ask(process.create_time),
            "cpu_user_s": cpu.user if cpu else None,
            "cpu_system_s": cpu.system if cpu else None,
            "rss_bytes": memory.rss if memory else None,
            "threads": _ask(process.num_threads),
            "env": None,
            "fds": {"0": None, "1": None, "2": None},
            "open_files": None,
            "open_files_limit": None,
            "tcp": None,
            "listens": None,
            "readable": readable,
            "denied": denied,
        }
        if readable:
            row["env"] = redact_environment(look.env or {})
            row["exe"] = _ask(process.exe, denied, "exe")
            row["cwd"] = _ask(process.cwd, denied, "cwd")
            row["fds"] = {fd: _descriptor(look.pid, fd, denied) for fd in ("0", "1", "2")}
            if sys.platform == "linux":
                row["open_files"] = _ask(process.num_fds)
                row["open_files_limit"] = _ask(lambda: process.rlimit(psutil.RLIMIT_NOFILE)[0])
        elif look.state != "Z":
            denied.append("environ")
    return row


def _ask(question: Callable[[], T], denied: list[str] | None = None, what: str = "") -> T | None:
    """The answer to a question about a process; None if it is gone or access is denied (noted in `denied`)."""
    try:
        return question()
    except (psutil.AccessDenied, PermissionError):
        if denied is not None:
            denied.append(what)
    except (psutil.Error, OSError):
        pass
    return None


def _descriptor(pid: int, fd: str, denied: list[str]) -> str | None:
    if sys.platform != "linux":
        return None
    return _ask(lambda: str(Path(f"/proc/{pid}/fd/{fd}").readlink()), denied, f"fd {fd}")


def _may_serve(row: dict[str, Any], looked: dict[int, _Look]) -> bool:
    """Whether a process may run a server: a rank, or a Python process that it started other than a data worker."""
    look = looked[row["pid"]]
    return look.is_python and row["name"] != "pt_data_worker" and "RANK" in (look.env or {})


def _may_be_spawned_rank(row: dict[str, Any], looked: dict[int, _Look]) -> bool:
    """Whether a process may be a spawned rank: a child of a Python program, without a rank in its environment.

    `torch.multiprocessing.spawn` passes ranks to its children through a pipe, so that only the connections between
    siblings show that they form a process group.
    """
    parent = looked.get(row["ppid"])
    if parent is None or not parent.is_python or row["name"] == "pt_data_worker" or row["env"] is None:
        return False
    return looked[row["pid"]].is_python and not {"RANK", "WORLD_SIZE"} & row["env"].keys()
