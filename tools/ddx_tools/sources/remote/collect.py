"""The program that `ddx collect` writes: on a host without ddx and network, it copies a job's evidence into one file.

    python3 ddx-collect.pyz [PID] [-o FILE.tar.gz]

It runs on Python 3.8 and later without any package, redacts secrets, and leaves nothing but the file. The file holds
texts that a person can read as well: per rank two dumps of its stacks and its variables, the logs, flight records, and
the state of the machine. `ddx why` reads the files of any number of hosts together.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import sys
import tarfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath

from ddx_tools.model.errors import DdxError, HostError, NotFound
from ddx_tools.parsers.launch.job_files import error_file_of, may_be_file, outputs_of, watchdog_paths
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.sources.host import Host, HostCall, Reply, ask_together
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.pyspy import find_pyspy
from ddx_tools.sources.hosts.redacted_reply import redacted_reply
from ddx_tools.sources.job_target import job_on
from ddx_tools.sources.remote.agent import prepare

APART_S = 6.0
"""Time between the two samples: long enough to see whether a rank moves."""
_AT_ONCE = 16
_FOLDERS = 4
"""How much of a log's path its name keeps: torchrun's logs are in <run>/<attempt>/<local rank>/."""
_MOST_LOG_BYTES, _MOST_RECORD_BYTES = 512 << 10, 64 << 20
"""Without RE2, the secrets of a megabyte take seconds to find."""
_MOST_KERNEL_BYTES = 1 << 20
_OF_THE_MACHINE = {
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "ip-link.txt": ("ip", "-s", "link"),
    "ip-addr.txt": ("ip", "-br", "addr"),
    "ss.txt": ("ss", "-tinp"),
    "df.txt": ("df", "-h", "/dev/shm", "/tmp"),
    "ibstat.txt": ("ibstat",),
    "rocm-smi.txt": ("rocm-smi", "-a"),
}
_STAMP = re.compile(rb"\[ *(\d{1,9}\.\d{1,9})\] ")

Collected = Iterator["tuple[str, bytes | HostError]"]
"""Names of files with their contents, or why there is none."""


class RedactingHost(Host):
    """Passes calls on to another host and redacts its answers."""

    def __init__(self, inner: Host) -> None:
        self.name = inner.name
        self._inner = inner

    def pause(self, seconds: float) -> None:
        """Wait as the other host does."""
        self._inner.pause(seconds)

    def answer(self, call: HostCall) -> Reply:
        """The other host's answer without secrets."""
        return redacted_reply(call, self._inner.answer(call))


def evidence_of(host: Host, job: Job) -> Collected:
    """Yield the evidence about a job's ranks on this host as (file name, contents or error).

    The files have two samples of stacks, environments, process states, the job's own files, facts about the machine,
    and the kernel log.
    """
    for sample in (1, 2):
        if sample > 1:
            host.pause(APART_S)
        yield from _stacks(host, job, sample)
    for member in job.live:
        own = member.process
        if own:
            lines = (f"{name}={value}".replace("\n", " ") for name, value in sorted(own.env.items()))
            yield f"{_name(member)}.env.txt", ("\n".join([*lines, f"HOSTNAME={host.name}"]) + "\n").encode()
            yield f"{_name(member)}.status.txt", _answer(partial(host.read, f"/proc/{member.pid}/status"))
    yield from _files(host, job)
    for name, command in _OF_THE_MACHINE.items():
        yield name, _answer(partial(host.run, command))
    starts = [each.process.row.get("create_time") for each in job.members if each.process]
    began_s = min((start for start in starts if start), default=0.0)
    yield "kernel.log", _kernel_log(host, began_s)


def _kernel_log(host: Host, began_s: float) -> bytes | HostError:
    """The kernel's messages since a time, with the host's name in each line, as journald prints them."""
    try:
        up_s = float(host.read("/proc/uptime").data.split()[0])
        reply = host.run(["dmesg"], max_bytes=_MOST_KERNEL_BYTES)
    except (HostError, ValueError, IndexError) as error:
        return error if isinstance(error, HostError) else HostError(f"the kernel log cannot be read: {error}", "")
    if reply.rc:
        return HostError(reply.message.strip()[:300] or "dmesg failed", "")
    return since(reply.data, host.now() - up_s, began_s, host.name)


def since(kernel_log: bytes, boot_s: float, start_s: float, host: str) -> bytes:
    """The lines of `dmesg` from a time on, dated: what was before the job explains nothing.

    `boot_s` and `start_s` are in seconds since the epoch.
    """
    kept, current = [], False
    for line in kernel_log.splitlines():
        stamp = _STAMP.match(line)
        if stamp:
            at_s = boot_s + float(stamp[1])
            current = at_s >= start_s - 1
            date = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(at_s))
            line = f"{date} {host} kernel: ".encode() + line[stamp.end() :]
        if current:
            kept.append(line + b"\n")
    return b"".join(kept)


def _name(member: JobProcess) -> str:
    return f"pid{member.pid}" if member.rank is None else f"rank{member.rank}"


def _answer(ask: Callable[[], Reply]) -> bytes | HostError:
    try:
        return ask().data
    except HostError as error:
        return error


def _stacks(host: Host, job: Job, sample: int) -> Collected:
    """The stacks of each rank and of the processes that it started, as py-spy prints them."""

    def dump(member: JobProcess) -> Reply:
        command = [find_pyspy(), "dump", "--subprocesses", "--pid", str(member.pid)]
        reply = host.run(command, timeout_s=30.0)
        if reply.rc:  # a stopped process cannot be attached to, but read
            reply = host.run([*command, "--nonblocking"], timeout_s=30.0)
        if reply.rc:
            raise HostError(reply.message.strip().replace("\n", " ")[:300] or "py-spy failed", "")
        return reply

    for member, reply in ask_together(dump, job.live, _AT_ONCE):
        yield f"{_name(member)}.sample{sample}.txt", reply.data if isinstance(reply, Reply) else reply


def _files(host: Host, job: Job) -> Collected:
    """The ends of the job's logs, the exceptions that ranks left, and the records that a watchdog wrote."""
    logs = dict.fromkeys(path for path in outputs_of(job.members) if may_be_file(path))
    for path in logs:
        name = "/".join(PurePosixPath(path).parts[1:][-_FOLDERS:])
        yield name, _answer(partial(host.read, path, max_bytes=_MOST_LOG_BYTES, tail=True, suffix="log"))
    for member in job.live:
        for name, path in _left_by(member):
            if may_be_file(path) and _is_of_this_run(host, path, member):
                yield name, _answer(partial(host.read, path, max_bytes=_MOST_RECORD_BYTES, suffix="bin"))


def _left_by(member: JobProcess) -> Iterator[tuple[str, str]]:
    """The files that a rank or its watchdog may have written: the name here, and the path."""
    if member.process:
        yield f"{_name(member)}.error.json", error_file_of(member.process)
    yield from ((f"nccl_trace_rank_{member.rank}", path) for path in watchdog_paths(member))


def _is_of_this_run(host: Host, path: str, member: JobProcess) -> bool:
    began_s = member.process.row.get("create_time") if member.process else None
    try:
        written_ns = [file.written_ns for file in host.walk(path).files]
    except HostError:
        return False  # it does not exist, or this user may not see it
    return not began_s or any(at is None or at >= began_s * 1e9 for at in written_ns)


def write_archive(path: Path, folder: str, collected: Collected, say: Callable[[str], object]) -> int:
    """Write files as a new `.tar.gz`, below a folder; return how many. `say` gets a line for each that is lacking.

    If it is interrupted or the disk is full, nothing is left.
    """
    count, names = 0, set[str]()
    with ExitStack() as unfinished, tarfile.open(path, "x:gz") as archive:
        unfinished.callback(path.unlink)
        for name, data in collected:
            if isinstance(data, HostError):
                if not isinstance(data, NotFound):  # a program or a file that this host does not have
                    say(f"{name}: {data.message}")
            elif data:
                while name in names:
                    name = f"again-{name}"
                names.add(name)
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(data))
                count += 1
        archive.close()
        unfinished.pop_all()
    return count


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def main() -> None:
    """Collect, as the command line says."""
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    parser = ArgumentParser(prog="ddx-collect", description="Copy a hung job's evidence on this host into one file.")
    parser.add_argument("pid", nargs="?", help="launcher or any rank; needed only if several jobs run here")
    parser.add_argument("-o", "--out", help="the file to write (.tar.gz)")
    asked = parser.parse_args()
    prepare()
    host = RedactingHost(LocalHost(socket.gethostname()))
    folder = re.sub(r"[^\w.-]+", "_", host.name)
    path = Path(asked.out or time.strftime(f"ddx-{folder}-%Y%m%d-%H%M%S.tar.gz"))
    say = sys.stderr.write
    try:
        job = job_on(host, [asked.pid] if asked.pid else [])
        say(f"{len(job.live)} ranks of {job.id} on {host.name}: two samples of their stacks, {APART_S:g} s apart\n")
        count = write_archive(path, folder, evidence_of(host, job), lambda line: say(f"lacking: {line}\n"))
    except (DdxError, OSError) as error:
        say(str(error).replace("ddx why ", f"python3 {sys.argv[0]} ") + "\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    say(f"{count} files\nBring the files of all hosts to a machine with ddx, then: ddx why *.tar.gz\n")
    sys.stdout.write(f"{path}\n")
