"""Asking the host for one thing after the other: answers are kept, and what is missing is said once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ddx_tools.errors import HostError, NotFound, NotRecorded
from ddx_tools.network.tools import TOOLS, absent
from ddx_tools.probe import Raw, RawItem
from ddx_tools.sources.hosts.base import Call, Host, Reply

Facts = Mapping[str, Any]
"""What is known of an answer beside its bytes."""

_MOST_ANSWER_BYTES = 16 << 20


class Asking:
    """One capture."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.raw = Raw(host.name)
        self.not_recorded: NotRecorded | None = None
        self._absent: set[str] = set()

    def run(
        self, kind: str, argv: Sequence[str], facts: Facts, *, timeout_s: float, max_bytes: int = 4 << 20
    ) -> RawItem | None:
        """Run a program; what it says on standard error stands behind its output. None if there is no answer."""
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
        """Ask anything else that may have no answer."""
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
        """Try a port on which somebody should listen, or not. See `ddx_tools.sources.hosts.tcp_exchange`."""
        call = Call("tcp", f"{address} {port}", {"timeout_s": timeout_s, "listens": listens})
        return self.ask(kind, lambda: self.host.answer(call).checked(), facts)

    def ask_line(self, kind: str, address: str, port: int, line: str, *, timeout_s: float) -> RawItem | None:
        """What a server answers to a line of text."""
        call = Call("tcp", f"{address} {port} {line}", {"timeout_s": timeout_s, "max_bytes": _MOST_ANSWER_BYTES})
        return self.ask(kind, lambda: self.host.answer(call).checked())

    def _keep(self, kind: str, data: bytes, reply: Reply, facts: Facts) -> RawItem:
        item = RawItem(kind, data, reply.source, dict(facts))
        self.raw.items.append(item)
        return item
