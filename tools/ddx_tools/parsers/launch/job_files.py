"""Where a job's processes write: logs, error files, and the records of NCCL's watchdog.

Pure: processes in, paths out. A job controls these paths, so they are filtered before anything is read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from ddx_tools.model.process import Process
from ddx_tools.parsers.launch.launchers import JobProcess

_PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def may_be_file(path: object) -> bool:
    """Whether a path of a process may be a file on disk, and no device or state of a process."""
    return (
        isinstance(path, str)
        and path.startswith("/")
        and not path.startswith(("/dev/", "/proc/", "/sys/"))
        and not path.endswith(" (deleted)")
    )


def streams_of(process: Process) -> list[str]:
    """What standard output and standard error of a process are: paths, pipes, sockets. Unknown ones are left out."""
    streams = process.row.get("fds") or {}
    return [streams[fd] for fd in ("1", "2") if streams.get(fd)]


def outputs_of(members: Iterable[JobProcess]) -> Iterator[str]:
    """Yield what the ranks and the launchers of a job print to, repeats included."""
    for member in members:
        if member.role in ("rank", "launcher") and member.process:
            yield from streams_of(member.process)


def error_file_of(process: Process) -> str:
    """The file in which torchrun lets a rank leave its exception; empty if it names none."""
    named = process.env.get("TORCHELASTIC_ERROR_FILE", "")
    return posixpath.normpath(posixpath.join(str(process.row.get("cwd") or ""), named)) if named else ""


def watchdog_paths(member: JobProcess) -> list[str]:
    """The possible paths of a rank's dump: prefix + rank; by default `/tmp/nccl_trace_rank_` (older torch) or below
    `~/.cache/torch`."""
    env = member.process.env if member.process else {}
    named = [env[name] for name in _PREFIX_VARIABLES if env.get(name)]
    if named:
        return [f"{prefix}{member.rank}" for prefix in named[:1]]
    user = str(member.process.row.get("user") or "") if member.process else ""
    home = "/root" if user == "root" else f"/home/{user}"
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return [f"/tmp/nccl_trace_rank_{member.rank}", f"{cache}/torch/comm_lib_trace_rank_{member.rank}"]
