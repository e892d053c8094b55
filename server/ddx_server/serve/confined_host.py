"""This machine as a client of the server may see it: files below the roots, and processes of the same user."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from ddx_server.serve.roots import is_below
from ddx_tools.investigation.run import this_machine
from ddx_tools.model.errors import HostError, NotFound, NotPermitted
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply

_SLICE_S = 0.2


class ConfinedHost(Host):
    """Passes allowed calls on to the local host. Each call is a point where cancelled work can stop.

    A live job's own files (logs, records) may be anywhere that its processes say; only files that a client names have
    to be below the roots.
    """

    def __init__(self, brought_as: str | None, roots: Sequence[Path], stop_if_cancelled: Callable[[], None]) -> None:
        self._inner = this_machine(brought_as)
        self.name = self._inner.name
        self._roots = tuple(roots) if brought_as else None
        self._inner.roots = self._roots or ()
        self._stop_if_cancelled = stop_if_cancelled
        self._checks: dict[str, Callable[[HostCall], None]] = {
            "read": self._check_path,
            "look": self._check_path,
            "walk": self._check_path,
            "unpack": self._check_path,
            "core": self._check_path,
            "stack": self._check_owner,
            "threads": self._check_owner,
            "agent": self._check_owner,
            "fetch": _check_address,
            "ras": _check_ras,
        }

    def pause(self, seconds: float) -> None:
        """Sleep in slices short enough that a cancelled call ends soon."""
        while seconds > 0:
            self._stop_if_cancelled()
            self._inner.pause(min(seconds, _SLICE_S))
            seconds -= _SLICE_S

    def answer(self, call: HostCall) -> Reply:
        """Carry out a call on the local host and return its reply, or an error reply if it is not allowed.

        Files and processes that the client may not see are removed from lists. Raises the cancellation if the client
        has cancelled.
        """
        self._stop_if_cancelled()
        try:
            if check := self._checks.get(call.op):
                check(call)
        except HostError as error:
            return error_reply(error)
        reply = self._inner.answer(call)
        if reply.error is None and call.op in ("processes", "glob", "walk"):
            return self._without_foreign(reply)
        return reply

    def _without_foreign(self, reply: Reply) -> Reply:
        """Remove from a list of processes or files those that the client may not see."""
        found = json.loads(reply.data)
        name = next((name for name in ("processes", "files") if name in found), None)
        rows = found[name] if name else found
        kept = [row for row in rows if self._may_be_seen(row)]
        if len(kept) == len(rows):
            return reply
        return dataclasses.replace(reply, data=json.dumps({**found, name: kept} if name else kept).encode())

    def _may_be_seen(self, row: Any) -> bool:
        """Whether the client may see a process (row of `hosts.processes`), a file (row of `hosts.walk`) or a path."""
        if isinstance(row, dict):
            return row["uid"] in (None, os.getuid())
        return self._is_readable(row if isinstance(row, str) else row[0])

    def _is_readable(self, path: str) -> bool:
        return self._roots is None or is_below(Path(os.path.realpath(path)), self._roots)

    def _check_path(self, call: HostCall) -> None:
        if not self._is_readable(call.key):
            raise NotPermitted(f"{call.key}: a link that leads outside what this server may read", "")

    def _check_owner(self, call: HostCall) -> None:
        pid = json.loads(call.key)["pid"] if call.op == "agent" else int(call.key.split()[0])
        try:
            owner = psutil.Process(pid).uids().real
        except psutil.Error as error:
            raise NotFound(f"process {pid} has ended", "") from error
        if owner != os.getuid():
            raise NotPermitted(
                f"process {pid} belongs to another user", "The server reads only processes of its own user."
            )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_address(call: HostCall) -> None:
    """Raise NotPermitted for an endpoint on another machine: a log must not be able to direct the server's requests."""
    url = call.key.partition(" ")[2]
    if not _is_here(urllib.parse.urlsplit(url).hostname or ""):
        raise NotPermitted(
            f"{url[:200]} is not on this machine",
            "In a shell: ddx flight-recorder --endpoint RANK=URL",
        )


def _check_ras(call: HostCall) -> None:
    """Raise NotPermitted for an NCCL RAS address on another machine."""
    if not _is_here(call.key.rpartition(":")[0].strip("[]")):
        raise NotPermitted(f"{call.key[:200]} is not on this machine", "In a shell: ddx nccl-log PID")
