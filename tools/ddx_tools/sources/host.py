"""Host: the only interface to machines, live or recorded.

A host answers calls. Each call has an operation and a key that identifies the question apart from its limits; each
reply has bytes or an error. All typed methods (`read`, `processes`, `stack`, …) are built on `answer` here, so that
live, recording and recorded hosts differ only in where replies come from.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ddx_tools.model.errors import HostError, NotFound, NotPermitted, NotRecorded, TimedOut

T = TypeVar("T")
R = TypeVar("R")
_ERRORS: dict[str, type[HostError]] = {
    "not_found": NotFound,
    "not_permitted": NotPermitted,
    "not_recorded": NotRecorded,
    "timed_out": TimedOut,
    "failed": HostError,
}


@dataclass(frozen=True)
class HostCall:
    """A question to a host. `key` identifies it in a bundle's journal; `options` are its limits."""

    op: str
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = "txt"


@dataclass(frozen=True)
class Reply:
    """An answer: bytes, or an error of a known kind with its help text."""

    data: bytes = b""
    rc: int = 0
    truncated: bool = False
    error: str | None = None
    """One of `not_found`, `not_permitted`, `not_recorded`, `timed_out`, `failed`; None if the call succeeded."""
    message: str = ""
    help: str = ""
    source: str = ""
    """Path of these bytes inside the bundle, once recorded."""
    file: str | None = None
    """For a reply in place: the file on this machine that holds the bytes; `data` is empty then."""
    kind: str | None = None
    """For a look: the kind of file (`ddx_tools.model.files.kinds.FileKind`), `text` or `other`."""
    end: bytes | None = None
    """For a live look at a longer text: its last bytes."""

    def checked(self) -> Reply:
        """Return this reply, or raise the exception for its error."""
        if self.error is None:
            return self
        raise _ERRORS.get(self.error, HostError)(self.message, self.help)


def error_reply(error: HostError) -> Reply:
    """The reply for an exception, so that a failure is recorded like any other answer."""
    kind = next((k for k, cls in _ERRORS.items() if type(error) is cls), "failed")
    return Reply(error=kind, message=error.message, help=error.help, rc=1)


def _garbled(what: str) -> HostError:
    """The error for an unparsable recorded answer: the bundle was modified or is damaged."""
    return HostError(f"the {what} cannot be read: it has changed since it was recorded", "Capture the bundle again.")


@dataclass(frozen=True)
class AgentReply:
    """A rank agent's answer: its JSON header and the payload that follows."""

    header: dict[str, Any]
    payload: bytes
    source: str = ""


@dataclass(frozen=True)
class WalkedFile:
    """A file below a path, or a member of an archive."""

    path: str
    size_bytes: int | None = None
    written_ns: int | None = None
    """The time of its last modification, in nanoseconds since the epoch."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For a record on a page of the debug server: `host`, `only_active`."""
    whole: bool = True
    """Whether it is complete: it could be unpacked to its end."""


@dataclass(frozen=True)
class Walk:
    """The files below a path or in an archive, sorted, and lines for a person."""

    files: list[WalkedFile]
    passed_over: list[str] = field(default_factory=list)
    """Skipped files that are no loss."""
    left_out: list[str] = field(default_factory=list)
    """Skipped files that may be a loss."""


UNKNOWN_HOST = "unknown"
"""The host name for the user's files: it is unknown where they were written."""


def ask_together(ask: Callable[[T], R], of: Sequence[T], at_once: int) -> Iterator[tuple[T, R | HostError]]:
    """Call `ask` on each item concurrently; yield results or errors in the order of the items."""
    from concurrent.futures import ThreadPoolExecutor

    def asked(one: T) -> R | HostError:
        try:
            return ask(one)
        except HostError as error:
            return error

    with ThreadPoolExecutor(at_once) as pool:
        yield from zip(of, pool.map(asked, of), strict=True)


class Host(ABC):
    """A machine, live or recorded. `name` is the host name that rows carry."""

    name: str

    @cached_property
    def intakes(self) -> dict[tuple[str, ...], Any]:
        """The cached intakes of files, by their paths; see `ddx_tools.sources.intake`."""
        return {}

    @abstractmethod
    def answer(self, call: HostCall) -> Reply:
        """Answer one call; never raises for an expected failure."""

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait between two samples of a live job; a recorded host does not wait."""

    def now(self) -> float:
        """The host's wall clock, in seconds since the epoch."""
        try:
            return float(self.answer(HostCall("now", "")).checked().data)
        except ValueError as error:
            raise _garbled("clock") from error

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, max_bytes: int = 4 << 20) -> Reply:
        """Run a command, never through a shell. The reply has `rc` and stdout; its message is stderr."""
        call = HostCall("run", json.dumps(list(argv)), {"timeout_s": timeout_s, "max_bytes": max_bytes})
        return self.answer(call).checked()

    def read(self, path: str, *, max_bytes: int = 8 << 20, tail: bool = False, suffix: str = "txt") -> Reply:
        """Read the first (or, with `tail`, the last) `max_bytes` of a file."""
        options = {"max_bytes": max_bytes, "tail": tail}
        return self.answer(HostCall("read", path, options, suffix)).checked()

    def locate(self, path: str, *, max_bytes: int, suffix: str = "bin") -> Reply:
        """Locate a whole file without copying it: the reply names a file on this machine that holds its bytes.

        A host that cannot do so answers with the bytes. A larger file is rejected (HostError).
        """
        options = {"max_bytes": max_bytes, "in_place": True}
        return self.answer(HostCall("read", path, options, suffix)).checked()

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern (`**` crosses directories), sorted, at most 10,000."""
        try:
            return [str(p) for p in json.loads(self.answer(HostCall("glob", pattern, suffix="json")).checked().data)]
        except (ValueError, TypeError) as error:
            raise _garbled("list of files") from error

    def walk(self, path: str) -> Walk:
        """List the regular files below a directory (not hidden, at most 100,000), or a path that is a file."""
        try:
            found = json.loads(self.answer(HostCall("walk", path, suffix="json")).checked().data)
            files = [WalkedFile(str(name), size, written_ns) for name, size, written_ns in found["files"]]
            return Walk(files, *([str(line) for line in found[key]] for key in ("passed_over", "left_out")))
        except (ValueError, TypeError, KeyError) as error:
            raise _garbled("list of files") from error

    def look(self, path: str, *, max_bytes: int, end_bytes: int = 0) -> Reply:
        """Identify a file; if it may be a text, also read its first `max_bytes` and, if it is longer, its end."""
        return self.answer(HostCall("look", path, {"max_bytes": max_bytes, "end_bytes": end_bytes}, "log")).checked()

    def unpack(self, path: str, *, named: bool) -> Walk:
        """Unpack an archive or a compressed file; its members can then be read by the returned paths."""
        call = HostCall("unpack", path, {"named": named}, "json")
        try:
            found = json.loads(self.answer(call).checked().data)
            files = [
                WalkedFile(str(name), size, written_ns, dict(facts), bool(whole))
                for name, size, written_ns, facts, whole in found["members"]
            ]
            return Walk(files, *([str(line) for line in found[key]] for key in ("passed_over", "problems")))
        except (ValueError, TypeError, KeyError) as error:
            raise _garbled("list of members") from error

    def files_below(self, path: str) -> list[str]:
        """The paths of the files that `walk` lists."""
        return [file.path for file in self.walk(path).files]

    def processes(self) -> Reply:
        """The process table as JSON: see `ddx_tools.sources.hosts.processes` for its fields and its limits."""
        return self.answer(HostCall("processes", "", suffix="json")).checked()

    def gpus(self) -> Reply:
        """The GPUs according to NVML, as JSON; see `sources.hosts.nvml`. NotFound: no library or no driver."""
        return self.answer(HostCall("nvml", "", suffix="json")).checked()

    def interfaces(self) -> Reply:
        """The network interfaces with their counters, as JSON; see `ddx_tools.sources.hosts.interfaces`."""
        return self.answer(HostCall("interfaces", "", suffix="json")).checked()

    def threads(self, pid: int, tids: Sequence[int] = ()) -> Reply:
        """The kernel's state of a process's threads, as JSON; see `ddx_tools.sources.hosts.threads`.

        With `tids`, only these are read: one thread costs 0.1 ms, and a training process has dozens.
        """
        key = f"{pid}" + "".join(f" {tid}" for tid in tids)
        return self.answer(HostCall("threads", key, suffix="json")).checked()

    def stack(
        self,
        pid: int,
        *,
        blocking: bool = True,
        native: bool = False,
        show_locals: bool = False,
        timeout_s: float = 10.0,
    ) -> Reply:
        """All Python stacks of a process: py-spy's JSON (py-spy 0.4, `dump --json`)."""
        flags = [
            name for name, on in (("nonblocking", not blocking), ("native", native), ("locals", show_locals)) if on
        ]
        key = " ".join([str(pid), *flags])
        return self.answer(HostCall("stack", key, {"timeout_s": timeout_s}, "json")).checked()

    def core_stacks(self, path: str, *, timeout_s: float) -> Reply:
        """The stacks of all threads in a core file, as pystack prints them: see `sources.hosts.pystack`.

        The core itself is never copied.
        """
        return self.answer(HostCall("core", path, {"timeout_s": timeout_s})).checked()

    def sample(self, pid: int, seconds: float) -> Reply:
        """Sample a process's stacks for some seconds: py-spy's collapsed stacks of all threads, idle ones too."""
        call = HostCall("sample", f"{pid} {seconds:g}", {"timeout_s": 2 * seconds + 30})
        return self.answer(call).checked()

    def ask_agent(
        self, run_dir: str, rank: int, pid: int, request: Mapping[str, Any], *, timeout_s: float = 8.0
    ) -> AgentReply:
        """Ask the rank agent of one rank (see `ddx_tools.payloads.rank_agent` for requests and headers)."""
        key = json.dumps({"run_dir": run_dir, "rank": rank, "pid": pid, "request": dict(request)}, sort_keys=True)
        reply = self.answer(HostCall("agent", key, {"timeout_s": timeout_s}, "bin")).checked()
        head, _, payload = reply.data.partition(b"\n")
        try:
            return AgentReply(dict(json.loads(head)), payload, reply.source)
        except (ValueError, TypeError) as error:
            raise _garbled(f"answer of rank {rank}'s agent") from error

    def fetch(self, url: str, *, method: str = "GET", timeout_s: float = 8.0, max_bytes: int = 64 << 20) -> Reply:
        """Request a debug endpoint that the user named or the job announced (http, loopback or rank hosts)."""
        return self.answer(
            HostCall("fetch", f"{method} {url}", {"timeout_s": timeout_s, "max_bytes": max_bytes})
        ).checked()

    def nccl_ras(self, address: str, *, timeout_s: float, max_bytes: int = 64 << 20) -> Reply:
        """The report of NCCL's RAS at `HOST:PORT` on a job: JSON, or text from an old NCCL."""
        options = {"timeout_s": timeout_s, "max_bytes": max_bytes}
        return self.answer(HostCall("ras", address, options, "log")).checked()

    def metrics(
        self, url: str, query: str, *, start_s: float, end_s: float, step_s: float, timeout_s: float, max_bytes: int
    ) -> Reply:
        """The values of metrics over time, from the Prometheus server at a URL that the user named.

        The reply has one line for each series; see `ddx_tools.parsers.machine.metrics_series`.
        """
        key = json.dumps([url, query, start_s, end_s, step_s])
        return self.answer(HostCall("metrics", key, {"timeout_s": timeout_s, "max_bytes": max_bytes}, "log")).checked()
