"""The machine that ddx runs on."""

from __future__ import annotations

import errno
import glob
import io
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddx_tools.model.errors import HostError, NotFound, NotPermitted, TimedOut
from ddx_tools.model.files.kinds import HEAD_BYTES, FileKind, kind_of
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts import pyspy
from ddx_tools.sources.hosts.nvml import read_gpus
from ddx_tools.sources.hosts.rank_agent import ask
from ddx_tools.sources.hosts.tcp_exchange import try_port
from ddx_tools.sources.hosts.threads import read_threads
from ddx_tools.sources.hosts.unpacked import Unpacked
from ddx_tools.sources.hosts.walk import walk
from ddx_tools.sources.kinds import OTHER, TEXT, may_be_text
from ddx_tools.sources.regular_files import open_regular

_GLOB_LIMIT = 10_000
_MOST_LISTED = 100_000
"""Enough for the dumps of 10,000 ranks with their headers, and four times as many other files. Opening this many takes
seconds."""
_LISTING_S = 30.0
_READ_AS_TEXT = (None, FileKind.TABLE, FileKind.HEADER)


class LocalHost(Host):
    """Answers from this machine, as this user, read-only."""

    def __init__(self, name: str | None = None, more: Mapping[str, Callable[[HostCall], Reply]] | None = None) -> None:
        """`more` adds operations that are themselves built on hosts."""
        self.name = name or socket.gethostname()
        self._operations = {**_OPERATIONS, **(more or {}), **dict.fromkeys(_OF_FILES, self._of_file)}
        self._unpacked = Unpacked()
        self.roots: Sequence[Path] = ()
        """If set, files outside these are never read, even if a link is changed meanwhile."""

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def answer(self, call: HostCall) -> Reply:
        """Perform the call on this machine."""
        operation = self._operations.get(call.op)
        if operation is None:
            raise ValueError(f"no such host operation: {call.op}")
        try:
            return operation(call)
        except HostError as error:
            return error_reply(error)
        except FileNotFoundError as error:
            return error_reply(NotFound(f"{error.filename or call.key}: no such file", ""))
        except PermissionError as error:
            reason = f"{error.filename or call.key}: permission denied"
            return error_reply(NotPermitted(reason, "Run ddx as the owner of the job, or with sudo."))
        except OSError as error:
            return error_reply(HostError(f"{call.key}: {error.strerror or error}", ""))

    def _of_file(self, call: HostCall) -> Reply:
        """Answer a call about a file or an unpacked member of an archive."""
        file = self._unpacked.file(call.key) or Path(call.key)
        if call.op == "core":
            from ddx_tools.sources.hosts import pystack

            with open_regular(file, self.roots if str(file) == call.key else ()) as core:
                return Reply(pystack.core_stacks(core.fileno(), timeout_s=call.options["timeout_s"]))
        if call.op == "unpack":
            return Reply(self._unpacked.unpack(call.key, file, named=call.options["named"]))
        answer = _look if call.op == "look" else _read
        # Unpacked files are where only we can write.
        return answer(file, call, self.roots if str(file) == call.key else ())


def _run(call: HostCall) -> Reply:
    argv = json.loads(call.key)
    limit = call.options["timeout_s"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=limit, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{argv[0]} did not finish within {limit:g} s", "") from error
    most = call.options["max_bytes"]
    stderr = done.stderr.decode("utf-8", "replace")[:4000]
    return Reply(done.stdout[:most], done.returncode, len(done.stdout) > most, message=stderr)


def _read(path: Path, call: HostCall, below: Sequence[Path]) -> Reply:
    most = call.options["max_bytes"]
    if call.options.get("in_place"):
        if (size := path.stat().st_size) > most:
            raise HostError(f"{call.key}: {size >> 20} MiB, which is more than the limit of {most >> 20} MiB", "")
        if not path.is_file():
            raise NotFound(f"{path}: not a regular file", "")
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, "permission denied", call.key)
        return Reply(file=str(path))
    with io.BufferedReader(open_regular(path, below)) as stream:
        if call.options.get("tail"):
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - most))
            return Reply(stream.read(most), truncated=size > most)
        data = stream.read(most + 1)
    return Reply(data[:most], truncated=len(data) > most)


def _look(path: Path, call: HostCall, below: Sequence[Path]) -> Reply:
    most, end_bytes = call.options["max_bytes"], call.options["end_bytes"]
    with open_regular(path, below) as stream:
        data = stream.read(HEAD_BYTES)
        kind = kind_of(data)
        if kind not in _READ_AS_TEXT or not may_be_text(data):
            return Reply(kind=kind or OTHER)
        # One byte more than asked for shows whether there is more.
        while len(data) <= most and (chunk := stream.read(most + 1 - len(data))):
            data += chunk
        end = None
        if len(data) > most and end_bytes:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - end_bytes))
            end = stream.read(end_bytes)
    return Reply(data[:most], truncated=len(data) > most, kind=kind or TEXT, end=end)


def _glob(call: HostCall) -> Reply:
    found = sorted(glob.glob(call.key, recursive=True))  # noqa: PTH207 - keys are plain patterns
    return Reply(json.dumps(found[:_GLOB_LIMIT]).encode(), truncated=len(found) > _GLOB_LIMIT)


def _walk(call: HostCall) -> Reply:
    found = walk(call.key, most=_MOST_LISTED, timeout_s=_LISTING_S)
    return Reply(found.to_json(), truncated=bool(found.left_out))


def _processes(_: HostCall) -> Reply:
    from ddx_tools.sources.hosts.processes import snapshot

    return Reply(snapshot())


def _interfaces(_: HostCall) -> Reply:
    from ddx_tools.sources.hosts.interfaces import read_interfaces

    return Reply(read_interfaces())


def _threads(call: HostCall) -> Reply:
    pid, *tids = (int(part) for part in call.key.split())
    return Reply(read_threads(pid, tids))


def _stack(call: HostCall) -> Reply:
    pid, *flags = call.key.split()
    how = {"blocking": "nonblocking" not in flags, "native": "native" in flags, "show_locals": "locals" in flags}
    return Reply(pyspy.dump(int(pid), **how, timeout_s=call.options["timeout_s"]))


def _sample(call: HostCall) -> Reply:
    pid, seconds = call.key.split()
    return Reply(pyspy.record(int(pid), float(seconds), timeout_s=call.options["timeout_s"]))


def _agent(call: HostCall) -> Reply:
    asked = json.loads(call.key)
    return Reply(ask(asked["run_dir"], asked["rank"], asked["pid"], asked["request"], call.options["timeout_s"]))


def _fetch(call: HostCall) -> Reply:
    from ddx_tools.sources.hosts.http_fetch import fetch

    return fetch(call)


def _tcp(call: HostCall) -> Reply:
    address, port = call.key.split()
    return Reply(try_port(address, int(port), call.options["timeout_s"], listens=call.options["listens"]))


def _ras(call: HostCall) -> Reply:
    from ddx_tools.sources.hosts.ras_client import ask_ras

    return Reply(ask_ras(call.key, call.options["timeout_s"], call.options["max_bytes"]))


def _metrics(call: HostCall) -> Reply:
    from ddx_tools.sources.hosts.metrics_client import ask_metrics

    return ask_metrics(call)


_OF_FILES = frozenset({"read", "look", "unpack", "core"})
_OPERATIONS: dict[str, Callable[[HostCall], Reply]] = {
    "now": lambda _: Reply(f"{time.time():.3f}".encode()),
    "run": _run,
    "glob": _glob,
    "walk": _walk,
    "processes": _processes,
    "nvml": lambda _: Reply(read_gpus()),
    "interfaces": _interfaces,
    "threads": _threads,
    "stack": _stack,
    "sample": _sample,
    "agent": _agent,
    "fetch": _fetch,
    "tcp": _tcp,
    "ras": _ras,
    "metrics": _metrics,
}
