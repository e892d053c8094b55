"""Host: the one door to the world.

A host answers calls. Each call has an operation and a key that names the question apart from its limits;
each reply is bytes plus what went wrong. Everything typed (`read`, `processes`, `stack`, …) is built on
`answer` here, once, so a live, a recording and a recorded host differ in nothing but where replies come from.
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
    """One of `not_found`, `not_permitted`, `not_recorded`, `timed_out`, `failed`; None if all went well."""
    message: str = ""
    help: str = ""
    source: str = ""
    """Path of these bytes inside the bundle, once they are recorded."""
    file: str | None = None
    """For a reply in place: the file on this machine that holds the bytes; `data` is empty then."""
    kind: str | None = None
    """Of a look: what the file is (`ddx_tools.model.files.kinds.Kind`), `text` or `other`."""
    end: bytes | None = None
    """Of a live look at a text that is longer: its last bytes."""

    def checked(self) -> Reply:
        """This reply, or the exception that its error stands for."""
        if self.error is None:
            return self
        raise _ERRORS.get(self.error, HostError)(self.message, self.help)


def error_reply(error: HostError) -> Reply:
    """The reply that stands for an exception, so that a failure is recorded like any other answer."""
    kind = next((k for k, cls in _ERRORS.items() if type(error) is cls), "failed")
    return Reply(error=kind, message=error.message, help=error.help, rc=1)


def _garbled(what: str) -> HostError:
    """A recorded answer that is none: somebody changed the bundle, or it is damaged."""
    return HostError(f"the {what} cannot be read: it is not what was recorded", "Capture the bundle again.")


@dataclass(frozen=True)
class AgentReply:
    """What a rank agent answered: its JSON header and the payload behind it."""

    header: dict[str, Any]
    payload: bytes
    source: str = ""


@dataclass(frozen=True)
class WalkedFile:
    """A file that lies below a path, or the member of an archive."""

    path: str
    size_bytes: int | None = None
    written_ns: int | None = None
    """When it was last written to, in nanoseconds since the epoch."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of a record on a page of the debug server: `host`, `only_active`."""
    whole: bool = True
    """Its end is there: what was packed could be unpacked."""


@dataclass(frozen=True)
class Walk:
    """The files below a path or in an archive, sorted, and lines for a person."""

    files: list[WalkedFile]
    passed_over: list[str] = field(default_factory=list)
    """What is no loss."""
    left_out: list[str] = field(default_factory=list)
    """What may be one."""


UNKNOWN_HOST = "unknown"
"""The host of files that somebody brought: nothing says where they were written."""


def ask_together(ask: Callable[[T], R], of: Sequence[T], at_once: int) -> Iterator[tuple[T, R | HostError]]:
    """What each of some answers, or why it does not: asked side by side, told in their order."""
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
        """What was taken in of the files below some paths; see `ddx_tools.sources.intake`."""
        return {}

    @abstractmethod
    def answer(self, call: HostCall) -> Reply:
        """Answer one call; never raises for an expected failure."""

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Let time pass between two looks at a live job; for a recorded host it stands still."""

    def now(self) -> float:
        """Wall clock of the host, seconds since the epoch."""
        try:
            return float(self.answer(HostCall("now", "")).checked().data)
        except ValueError as error:
            raise _garbled("clock") from error

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, max_bytes: int = 4 << 20) -> Reply:
        """Run a command (never through a shell). `rc` and stdout; stderr is the reply's message."""
        call = HostCall("run", json.dumps(list(argv)), {"timeout_s": timeout_s, "max_bytes": max_bytes})
        return self.answer(call).checked()

    def read(self, path: str, *, max_bytes: int = 8 << 20, tail: bool = False, suffix: str = "txt") -> Reply:
        """The first (or, with `tail`, the last) `max_bytes` of a file."""
        options = {"max_bytes": max_bytes, "tail": tail}
        return self.answer(HostCall("read", path, options, suffix)).checked()

    def locate(self, path: str, *, max_bytes: int, suffix: str = "bin") -> Reply:
        """A whole file left where it is: the reply names a file of this machine that holds its bytes.

        A host that cannot do so answers with the bytes themselves. A larger file is refused (HostError).
        """
        options = {"max_bytes": max_bytes, "in_place": True}
        return self.answer(HostCall("read", path, options, suffix)).checked()

    def glob(self, pattern: str) -> list[str]:
        """Paths that match a pattern (`**` crosses directories), sorted; at most 10,000."""
        try:
            return [str(p) for p in json.loads(self.answer(HostCall("glob", pattern, suffix="json")).checked().data)]
        except (ValueError, TypeError) as error:
            raise _garbled("list of files") from error

    def walk(self, path: str) -> Walk:
        """The regular files below a directory, at most 100,000, hidden ones left out; the path itself if it is one."""
        try:
            found = json.loads(self.answer(HostCall("walk", path, suffix="json")).checked().data)
            files = [WalkedFile(str(name), size, written_ns) for name, size, written_ns in found["files"]]
            return Walk(files, *([str(line) for line in found[key]] for key in ("passed_over", "left_out")))
        except (ValueError, TypeError, KeyError) as error:
            raise _garbled("list of files") from error

    def look(self, path: str, *, max_bytes: int, end_bytes: int = 0) -> Reply:
        """What a file is; of one that may be a text also its first `max_bytes` and, if it is longer, its end."""
        return self.answer(HostCall("look", path, {"max_bytes": max_bytes, "end_bytes": end_bytes}, "log")).checked()

    def unpack(self, path: str, *, named: bool) -> Walk:
        """The files in an archive or a compressed file, which can be looked at and read by these paths from now on."""
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
        """The paths that `walk` gives."""
        return [file.path for file in self.walk(path).files]

    def processes(self) -> Reply:
        """The process table as JSON: see `ddx_tools.sources.hosts.processes` for its fields and its limits."""
        return self.answer(HostCall("processes", "", suffix="json")).checked()

    def gpus(self) -> Reply:
        """What NVML says of the GPUs, as JSON; see `sources.hosts.nvml`. NotFound: no library or no driver."""
        return self.answer(HostCall("nvml", "", suffix="json")).checked()

    def interfaces(self) -> Reply:
        """The network interfaces with their counters, as JSON; see `ddx_tools.sources.hosts.interfaces`."""
        return self.answer(HostCall("interfaces", "", suffix="json")).checked()

    def threads(self, pid: int, tids: Sequence[int] = ()) -> Reply:
        """What the kernel says of a process's threads, as JSON; see `ddx_tools.sources.hosts.threads`.

        With `tids` only these are read: reading one thread costs 0.1 ms, and a training process has dozens.
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

    def sample(self, pid: int, seconds: float) -> Reply:
        """How often each stack of a process was seen: py-spy's collapsed stacks of all threads, idle ones too."""
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
        """A request to a debug endpoint that the user named or the job announced (http, loopback or rank hosts)."""
        return self.answer(
            HostCall("fetch", f"{method} {url}", {"timeout_s": timeout_s, "max_bytes": max_bytes})
        ).checked()

    def nccl_ras(self, address: str, *, timeout_s: float, max_bytes: int = 64 << 20) -> Reply:
        """What NCCL's RAS at `HOST:PORT` reports of a job: JSON, or text of an old NCCL."""
        options = {"timeout_s": timeout_s, "max_bytes": max_bytes}
        return self.answer(HostCall("ras", address, options, "log")).checked()
