"""This machine restricted to a lab job: everything else on it stays out of the incident."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable

import psutil

from ddx_tools.investigation.run import this_machine
from ddx_tools.sources.host import Host, HostCall, Reply

_PID = re.compile(r"\bpid=(\d+)")
_PID_IN_KERNEL_LOG = re.compile(r"(?:[Pp]rocess |\b[Pp][Ii][Dd][=:] ?|\[\s*)(\d+)\b(?!\.)")
_KERNEL_LOGS = ("dmesg", "journalctl")
_NOT_PERMITTED = Reply(error="not_permitted", message="dmesg: read kernel buffer failed: Operation not permitted", rc=1)


class JobHost(Host):
    """The local host without the processes, sockets and kernel messages of others.

    `pids` are processes of the job, living or not; their descendants belong to the job as well. With `kernel_log`,
    users may read kernel messages about these processes; usually they may not.
    """

    def __init__(self, brought_as: str | None, pids: Iterable[int], *, kernel_log: bool = False) -> None:
        self._inner = this_machine(brought_as)
        self.name = self._inner.name
        self._pids = set(pids)
        self._kernel_log = kernel_log
        self._of_programs: dict[str, Callable[[bytes], bytes]] = {
            "ss": self._own_sockets,
            "dmesg": self._own_kernel_messages,
            "journalctl": self._own_kernel_messages,
        }

    def pause(self, seconds: float) -> None:
        """Sleep."""
        self._inner.pause(seconds)

    def answer(self, call: HostCall) -> Reply:
        """The local answer, restricted to the job."""
        program = str(json.loads(call.key)[0]) if call.op == "run" else ""
        if program in _KERNEL_LOGS and not self._kernel_log:
            return _NOT_PERMITTED
        reply = self._inner.answer(call)
        cut = self._own_processes if call.op == "processes" else self._of_programs.get(program)
        return dataclasses.replace(reply, data=cut(reply.data)) if cut and reply.error is None else reply

    def _own(self) -> set[int]:
        for pid in tuple(self._pids):
            with contextlib.suppress(psutil.Error):
                self._pids |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        return self._pids

    def _own_processes(self, data: bytes) -> bytes:
        found = json.loads(data)
        own = self._own()
        found["processes"] = [row for row in found["processes"] if row["pid"] in own]
        return json.dumps(found).encode()

    def _own_sockets(self, data: bytes) -> bytes:
        """Keep the header, and the line and indented lines of each socket that a process of the job holds."""
        own = self._own()
        kept, keep = [], True
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines()):
            if number and not line[:1].isspace():
                keep = any(int(pid) in own for pid in _PID.findall(line))
            if keep:
                kept.append(line)
        return ("\n".join(kept) + "\n").encode()

    def _own_kernel_messages(self, data: bytes) -> bytes:
        own = self._own()
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        return "".join(
            line for line in lines if any(int(pid) in own for pid in _PID_IN_KERNEL_LOG.findall(line))
        ).encode()
