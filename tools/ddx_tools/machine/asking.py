"""Asking a live machine: every answer is kept, and what is not there is said to be not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddx_tools.errors import HostError, NotRecorded
from ddx_tools.probe import Raw, RawItem
from ddx_tools.sources.hosts.base import Host, Reply

ANSWER = "answer"
UNAVAILABLE = "unavailable"

_FILES_PER_QUESTION = 1_000


class Asking:
    """One look at one machine."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.raw = Raw(host.name)
        self.not_recorded: NotRecorded | None = None

    def ask(self, what: str, question: Callable[[], Reply], kind: str = ANSWER, *, absent: bool = True) -> Reply | None:
        """Keep the answer; None if there is none, and with `absent` a word in its place."""
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
        """Ask a command. What it prints before it fails is kept, too."""
        return self.ask(what, lambda: self.host.run(argv, timeout_s=timeout_s))

    def files(self, what: str, paths: Sequence[str], *, below: bool = False) -> Reply | None:
        """Ask for many small files at once, `path:line`; those that are not there or cannot be read are left out."""
        how = "-rsH" if below else "-sH"
        return self.run(what, "grep", how, "", *paths[:_FILES_PER_QUESTION]) if paths else None

    def glob(self, pattern: str, what: str, without: str) -> list[str]:
        """Paths that match; with none of them, the word `without` in their place."""
        try:
            found = self.host.glob(pattern)
        except NotRecorded as error:
            self.not_recorded = self.not_recorded or error
            return []
        if not found:
            self.unavailable(what, without)
        return found

    def unavailable(self, what: str, why: str) -> None:
        """Note that this machine, or this user, has no answer: that is neither well nor ill."""
        self.raw.items.append(RawItem(UNAVAILABLE, b"", "", {"what": what, "why": why}))
