"""This machine as far as a lab job goes: what else runs on it is nobody's business, and no part of the incident."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable

import psutil

from ddx_tools.hosts.base import Call, Host, Reply
from ddx_tools.hosts.local import LocalHost

_PID = re.compile(r"\bpid=(\d+)")
_NOT_PERMITTED = Reply(error="not_permitted", message="dmesg: read kernel buffer failed: Operation not permitted", rc=1)


class JobHost(Host):
    """The local host without the processes, sockets and kernel messages of others.

    The kernel log is answered as most users get it: not at all.
    """

    def __init__(self, brought_as: str | None, launcher_pid: int) -> None:
        self._inner = LocalHost(brought_as)
        self.name = self._inner.name
        self._launcher_pid = launcher_pid
        self._pids: set[int] = set()
        self._filters: dict[str, Callable[[bytes], bytes]] = {
            "processes": self._own_processes,
            json.dumps(["ss", "-tinp"]): self._own_sockets,
        }

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._inner.pause(seconds)

    def answer(self, call: Call) -> Reply:
        """The local answer, cut to the job."""
        if call.op == "run" and json.loads(call.key)[0] == "dmesg":
            return _NOT_PERMITTED
        reply = self._inner.answer(call)
        cut = self._filters.get(call.key if call.op == "run" else call.op)
        return dataclasses.replace(reply, data=cut(reply.data)) if cut and reply.error is None else reply

    def _own(self) -> set[int]:
        with contextlib.suppress(psutil.Error):
            launcher = psutil.Process(self._launcher_pid)
            self._pids |= {launcher.pid, *(child.pid for child in launcher.children(recursive=True))}
        return self._pids

    def _own_processes(self, data: bytes) -> bytes:
        found = json.loads(data)
        own = self._own()
        found["processes"] = [row for row in found["processes"] if row["pid"] in own]
        return json.dumps(found).encode()

    def _own_sockets(self, data: bytes) -> bytes:
        """Keep the head, and of each socket its line and the indented ones below, if a process of the job holds it."""
        own = self._own()
        kept, keep = [], True
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines()):
            if number and not line[:1].isspace():
                keep = any(int(pid) in own for pid in _PID.findall(line))
            if keep:
                kept.append(line)
        return ("\n".join(kept) + "\n").encode()
