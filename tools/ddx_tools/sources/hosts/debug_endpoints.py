"""The servers of `torch.distributed.debug` (torch 2.10 and later): one for each rank, and one address for all of them.

Each rank's server answers `POST /handler/NAME`. It says neither rank nor members of groups, and no port of a training
job is tried unasked: whoever names an endpoint names its rank. The front end on rank 0 lists the ranks' servers
(`/tcpstore`) and shows what all of them answer, once the last one has answered or 60 s (`fetch_timeout`) are over. So
the ranks are asked directly, each with a deadline of its own; the pages of the front end count where none of them can
be reached from here.

Source: torch 2.13.0, torch/distributed/debug/__init__.py, _frontend.py, _debug_handlers.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ddx_tools.model.errors import HostError, NotFound, TimedOut, UnreadableInput, UsageError
from ddx_tools.parsers.flight_records.debug_pages import records_of_page, workers_of_page
from ddx_tools.sources.host import Host, Reply, ask_together

if TYPE_CHECKING:
    from ddx_tools.parsers.launch.launchers import Job, JobProcess

PORT = 25999
"""Where the front end listens unless `start_debug_server` was told another port."""
PAGES = {"dump_traceback": "stacks", "fr_trace_json": "fr_trace_json", "wait_counter_values": "wait_counters"}
"""By handler of a rank's server: the page of the front end that shows what all ranks answer."""
_LIST_S = 3.0
_PING_S = 1.5
_PAGES_S = {"stacks": 4.0, "fr_trace_json": 6.0, "wait_counters": 2.0}
_AT_ONCE = 256
_MOST_PART_BYTES = 64 << 20
_ENDPOINT = re.compile(r"(\d{1,7})=(https?://[^/\s]+)/?")
_SERVER = re.compile(r"(?:(https?)://)?(\[[0-9a-fA-F:.%]{2,60}\]|[\w.-]{1,255})(?::(\d{1,5}))?/?")


def parse_endpoint(text: str) -> tuple[int, str]:
    """(rank, base URL) of `RANK=http://host:port`. Raises UsageError."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:200]!r} does not name a rank's debug endpoint.",
            "Write RANK=URL for each rank, for example: --endpoint 0=http://node1:41234",
        )
    return int(match[1]), match[2]


def server_url(text: str) -> str:
    """The base URL of `HOST:PORT`, `HOST` or a URL. Raises UsageError."""
    match = _SERVER.fullmatch(text)
    if match is None or int(match[3] or PORT) > 0xFFFF:
        raise UsageError(
            f"{text[:200]!r} is no address of a debug server.",
            f"Write HOST:PORT of rank 0, for example: --debug-server node1:{PORT}",
        )
    return f"{match[1] or 'http'}://{match[2]}:{match[3] or PORT}"


def ask_endpoints(
    host: Host, endpoints: Sequence[str], handler: str, timeout_s: float
) -> list[tuple[int, str, Reply | HostError]]:
    """What a handler of each named worker server answers, all asked at once: rank, URL, answer."""
    named = [Worker(*parse_endpoint(text)) for text in endpoints]
    return [(one.rank, one.url, reply) for one, reply in _ask(host, named, handler, timeout_s)]


@dataclass(frozen=True)
class Worker:
    """The server of one rank."""

    rank: int
    url: str

    @property
    def host(self) -> str | None:
        """What the rank calls its own machine."""
        return urlsplit(self.url).hostname


Answers = list[tuple[Worker, Reply | HostError]]
"""One for each rank that was asked, by rank."""


@dataclass
class DebugServer:
    """All ranks of a job, by the address of the front end."""

    host: Host
    url: str
    workers: list[Worker] = field(default_factory=list)
    """The ranks that announced a server, by rank."""
    silent: Answers = field(default_factory=list)
    """The ranks whose server does not answer, and how it does not."""
    through_pages: bool = False
    """No rank's server can be reached from here: the front end has to ask them."""
    failed: HostError | None = None
    """Why a page did not come: another one would wait for the same rank."""

    @property
    def awake(self) -> list[Worker]:
        """The ranks whose server answers, as far as anybody can tell."""
        silent = {worker.rank for worker, _ in self.silent}
        return [worker for worker in self.workers if worker.rank not in silent]

    @classmethod
    def at(cls, host: Host, address: str) -> DebugServer:
        """The server at `HOST:PORT`, and the ranks that it knows. Raises UsageError, or HostError if nobody answers."""
        server = cls(host, server_url(address))
        try:
            page = host.fetch(f"{server.url}/tcpstore", timeout_s=_LIST_S)
        except TimedOut as error:
            raise HostError(
                f"the debug server at {address} took the connection and does not answer",
                "Its store does not answer it: is the host of rank 0, or of the launcher that keeps the store, alive?",
            ) from error
        except HostError as error:
            raise HostError(
                f"no debug server answers at {address} ({error.message})",
                "It listens on rank 0, if the program called torch.distributed.debug.start_debug_server(port=…) on all "
                f"ranks; the default port is {PORT}.",
            ) from error
        server.workers = [Worker(rank, url) for rank, url in workers_of_page(page.data)]
        if not server.workers:
            raise HostError(f"{address} answers, and names no rank: it is no debug server of torch", "")
        pinged = server.ask("ping", _PING_S, server.workers)
        failed = [(worker, reply) for worker, reply in pinged if isinstance(reply, HostError)]
        server.through_pages = len(failed) == len(pinged) and not any(isinstance(e, TimedOut) for _, e in failed)
        server.silent = [] if server.through_pages else list(failed)
        return server

    def ask(self, handler: str, timeout_s: float, of: Sequence[Worker]) -> Answers:
        """What a handler of some ranks answers, all asked at once, each within the time limit."""
        if self.through_pages:
            return self._of_page(of, handler)
        answers = _ask(self.host, [self._as_reached(worker) for worker in of], handler, timeout_s)
        return [(worker, reply) for worker, (_, reply) in zip(of, answers, strict=True)]

    def _as_reached(self, worker: Worker) -> Worker:
        """A rank on this machine is asked on it, whatever the machine's name resolves to."""
        port = urlsplit(worker.url).port
        return Worker(worker.rank, f"http://127.0.0.1:{port}") if worker.host == self.host.name else worker

    def _of_page(self, asked: Sequence[Worker], handler: str) -> Answers:
        if self.failed is not None:
            return [(worker, self.failed) for worker in asked]
        page_name = PAGES[handler]
        try:
            page = self.host.fetch(f"{self.url}/{page_name}", timeout_s=_PAGES_S[page_name])
            parts = {part.rank: part for part in records_of_page(BytesIO(page.data), _MOST_PART_BYTES)}
        except (HostError, UnreadableInput) as error:
            waits = "; it waits for silent ranks until its fetch_timeout" if isinstance(error, TimedOut) else ""
            self.failed = HostError(f"{error.message}{waits}", error.help)
            return [(worker, self.failed) for worker in asked]
        absent = NotFound("the page of the debug server does not hold this rank", "")
        return [
            (
                worker,
                absent
                if (part := parts.get(worker.rank)) is None
                else NotFound(f"the debug server got no answer: {part.data[:200].decode('utf-8', 'replace')}", "")
                if part.failed
                else Reply(part.data, source=page.source),
            )
            for worker in asked
        ]


def _ask(host: Host, workers: Sequence[Worker], handler: str, timeout_s: float) -> Answers:
    def fetch(worker: Worker) -> Reply:
        return host.fetch(f"{worker.url}/handler/{handler}", method="POST", timeout_s=timeout_s)

    return list(ask_together(fetch, workers, min(_AT_ONCE, max(16, len(workers)))))


def server_of_job(job: Job) -> str | None:
    """HOST:PORT of the front end of a job whose rank 0 runs on this host; None if none is to be seen.

    It is a process that rank 0 started with `multiprocessing`, and listens on the one port that rank 0 does not.
    """
    first = next((member for member in job.live if member.rank == 0 and member.process), None)
    if first is None or first.process is None:
        return None
    own = set(first.process.row.get("listens") or ())
    candidates = {port for member in job.members if _is_front_end(member, first) for port in _listens(member) - own}
    return f"127.0.0.1:{candidates.pop()}" if len(candidates) == 1 else None


def _is_front_end(member: JobProcess, first: JobProcess) -> bool:
    process, parent = member.process, first.process
    if process is None or parent is None or process.ppid != parent.pid:
        return False
    return process.command == parent.command or "multiprocessing" in process.command


def _listens(member: JobProcess) -> set[int]:
    return set((member.process.row.get("listens") if member.process else None) or ())
