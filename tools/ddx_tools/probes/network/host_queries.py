"""Asks the host one query after another: answers are kept, and each gap is reported once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ddx_tools.model.errors import DdxError, HostError, NotFound, NotRecorded
from ddx_tools.parsers.launch.launchers import Job, find_jobs
from ddx_tools.sources.host import Host, HostCall, Reply
from ddx_tools.sources.raw import Raw, RawItem

Facts = Mapping[str, Any]
"""What is known about an answer, apart from its bytes."""


class NetworkQueries:
    """The queries of one capture, and the raw material they fill."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.raw = Raw(host.name)
        self.not_recorded: NotRecorded | None = None
        self._absent: set[str] = set()

    def run(
        self, kind: str, argv: Sequence[str], facts: Facts, *, timeout_s: float, max_bytes: int = 4 << 20
    ) -> RawItem | None:
        """Run a program and return its output, followed by its standard error; None if there is no answer."""
        program = argv[0]
        if program in self._absent:
            return None
        try:
            reply = self.host.run(argv, timeout_s=timeout_s, max_bytes=max_bytes)
        except NotFound:
            self._absent.add(program)
            self.raw.failed(program, absent(program), TOOLS[program].without)
            return None
        except NotRecorded as error:
            self.not_recorded = self.not_recorded or error
            return None
        except HostError as error:
            self.raw.failed(program, error, TOOLS[program].without)
            return None
        said = reply.data + (b"\n" + reply.message.encode() if reply.message else b"")
        return self._keep(kind, said, reply, {**facts, "rc": reply.rc})

    def ask(self, kind: str, question: Callable[[], Reply], facts: Facts = MappingProxyType({})) -> RawItem | None:
        """Call `question`, which asks the host, and keep its answer as an item of this `kind`.

        `facts` are stored with the item. Returns None if the host gives no answer.
        """
        try:
            reply = question()
        except NotRecorded as error:
            self.not_recorded = self.not_recorded or error
            return None
        except HostError:
            return None
        return self._keep(kind, reply.data, reply, facts)

    def try_port(
        self, kind: str, address: str, port: int, facts: Facts, *, timeout_s: float, listens: bool
    ) -> RawItem | None:
        """Try to connect to a port; `listens` says whether a process should listen there. See
        `ddx_tools.sources.hosts.tcp_exchange`."""
        call = HostCall("tcp", f"{address} {port}", {"timeout_s": timeout_s, "listens": listens})
        return self.ask(kind, lambda: self.host.answer(call).checked(), facts)

    def _keep(self, kind: str, data: bytes, reply: Reply, facts: Facts) -> RawItem:
        item = RawItem(kind, data, reply.source, dict(facts))
        self.raw.items.append(item)
        return item


# --- the programs that do the work, and how to install missing ones


@dataclass(frozen=True)
class NetworkTool:
    """A system program, its packages, and what stays unknown without it."""

    debian: str
    """Its package in Debian and Ubuntu."""
    fedora: str
    """Its package in Fedora and RHEL."""
    without: str
    """What stays unknown if it is missing."""


TOOLS = {
    "getent": NetworkTool("libc-bin", "glibc-common", "Names cannot be resolved: give peers by address."),
    "ip": NetworkTool("iproute2", "iproute", "The interface to the peer is unknown."),
    "ss": NetworkTool("iproute2", "iproute", "The processes that listen on this host's ports are unknown."),
    "ping": NetworkTool("iputils-ping", "iputils", "Path MTU and packet loss were not measured."),
    "iperf3": NetworkTool("iperf3", "iperf3", "TCP throughput was not measured."),
    "ib_write_bw": NetworkTool("perftest", "perftest", "RDMA bandwidth was not measured."),
    "tshark": NetworkTool("tshark", "wireshark-cli", "The captures were not read."),
}


def absent(program: str) -> NotFound:
    """Return the error that says how to install a missing program."""
    tool = TOOLS[program]
    how = f"Debian, Ubuntu: apt-get install {tool.debian}; Fedora, RHEL: dnf install {tool.fedora}."
    return NotFound(f"{program} is not installed here. {how}", "")


# --- the distributed jobs in a process table, from a host or a bundle


def jobs_in(snapshot: bytes) -> list[Job] | None:
    """Return the jobs in a process table; None if the table cannot be read (a damaged bundle)."""
    try:
        return find_jobs(json.loads(snapshot))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, DdxError):
        return None
