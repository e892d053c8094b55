"""The servers of `torch.distributed.debug` (torch 2.10 and later): one per rank, and one front end for all ranks.

Each rank's server answers `POST /handler/NAME`. It does not say its rank or its groups' members, and ddx never tries a
training job's ports unasked: the user names the rank with the endpoint. The front end on rank 0 lists the ranks'
servers (`/tcpstore`) and shows all their answers once the last one has answered or 60 s (`fetch_timeout`) have passed.
So the ranks are asked directly, each with its own deadline; the front end's pages are used if none of them can be
reached from here.

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
"""The front end's default port in `start_debug_server`."""
PAGES = {"dump_traceback": "stacks", "fr_trace_json": "fr_trace_json", "wait_counter_values": "wait_counters"}
"""For each handler of a rank's server, the page of the front end with all ranks' answers."""
_LIST_S = 3.0
_PING_S = 1.5
_PAGES_S = {"stacks": 4.0, "fr_trace_json": 6.0, "wait_counters": 2.0}
_AT_ONCE = 256
_MOST_PART_BYTES = 64 << 20
_ENDPOINT = re.compile(r"(\d{1,7})=(https?://[^/\s]+)/?")
_SERVER = re.compile(r"(?:(https?)://)?(\[[0-9a-fA-F:.%]{2,60}\]|[\w.-]{1,255})(?::(\d{1,5}))?/?")


def parse_endpoint(text: str) -> tuple[int, str]:
    """Parse `RANK=http://host:port` into (rank, base URL). Raises UsageError."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:200]!r} does not name a rank's debug endpoint.",
            "Give RANK=URL for each rank, for example: --endpoint 0=http://node1:41234",
        )
    return int(match[1]), match[2]


def server_url(text: str) -> str:
    """The base URL for `HOST:PORT`, `HOST` or a URL. Raises UsageError."""
    match = _SERVER.fullmatch(text)
    if match is None or int(match[3] or PORT) > 0xFFFF:
        raise UsageError(
            f"{text[:200]!r} is not the address of a debug server.",
            f"Give HOST:PORT of rank 0, for example: --debug-server node1:{PORT}",
        )
    return f"{match[1] or 'http'}://{match[2]}:{match[3] or PORT}"


def ask_endpoints(
    host: Host, endpoints: Sequence[str], handler: str, timeout_s: float
) -> list[tuple[int, str, Reply | HostError]]:
    """Ask the debug servers at all named endpoints at once, each with the time limit.

    An endpoint is `RANK=http://host:port`. `handler` is the NAME in the request `POST /handler/NAME`. Returns (rank,
    URL, reply or error) for each.
    """
    named = [Worker(*parse_endpoint(text)) for text in endpoints]
    return [(one.rank, one.url, reply) for one, reply in _ask(host, named, handler, timeout_s)]


@dataclass(frozen=True)
class Worker:
    """The debug server of one rank."""

    rank: int
    url: str

    @property
    def host(self) -> str | None:
        """The host name in the URL that the rank announced; None if it has none."""
        return urlsplit(self.url).hostname


Answers = list[tuple[Worker, Reply | HostError]]
"""One answer per asked rank, in rank order."""


@dataclass
class DebugServer:
    """The debug servers of all ranks of a job, found through the front end."""

    host: Host
    url: str
    workers: list[Worker] = field(default_factory=list)
    """The ranks that announced a server, in rank order."""
    silent: Answers = field(default_factory=list)
    """The ranks whose server does not answer, with the error."""
    through_pages: bool = False
    """Whether no rank's server can be reached from here, so that the front end has to ask them."""
    failed: HostError | None = None
    """Why a page failed: another page would wait for the same rank."""

    @property
    def awake(self) -> list[Worker]:
        """The ranks whose server is not known to be silent."""
        silent = {worker.rank for worker, _ in self.silent}
        return [worker for worker in self.workers if worker.rank not in silent]

    @classmethod
    def at(cls, host: Host, address: str) -> DebugServer:
        """Connect to the front end at `HOST:PORT` and list its ranks. Raises UsageError or HostError."""
        server = cls(host, server_url(address))
        try:
            page = host.fetch(f"{server.url}/tcpstore", timeout_s=_LIST_S)
        except TimedOut as error:
            raise HostError(
                f"the debug server at {address} accepted the connection but does not answer",
                "Its store may not answer: is the host of rank 0, or of the launcher that keeps the store, alive?",
            ) from error
        except HostError as error:
            raise HostError(
                f"no debug server answers at {address} ({error.message})",
                "It listens on rank 0 if the program called torch.distributed.debug.start_debug_server(port=…) on "
                f"all ranks; the default port is {PORT}.",
            ) from error
        server.workers = [Worker(rank, url) for rank, url in workers_of_page(page.data)]
        if not server.workers:
            raise HostError(f"{address} answers but lists no ranks: it is not torch's debug server", "")
        pinged = server.ask("ping", _PING_S, server.workers)
        failed = [(worker, reply) for worker, reply in pinged if isinstance(reply, HostError)]
        server.through_pages = len(failed) == len(pinged) and not any(isinstance(e, TimedOut) for _, e in failed)
        server.silent = [] if server.through_pages else list(failed)
        return server

    def ask(self, handler: str, timeout_s: float, of: Sequence[Worker]) -> Answers:
        """Ask the debug servers of some ranks at once, each with the time limit.

        `handler` is the NAME in the request `POST /handler/NAME`. Returns each rank's server with its reply or error.
        """
        if self.through_pages:
            return self._of_page(of, handler)
        answers = _ask(self.host, [self._as_reached(worker) for worker in of], handler, timeout_s)
        return [(worker, reply) for worker, (_, reply) in zip(of, answers, strict=True)]

    def _as_reached(self, worker: Worker) -> Worker:
        """Replace this machine's name by loopback, whatever the name resolves to."""
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
        absent = NotFound("the debug server's page does not have this rank", "")
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
    """HOST:PORT of the front end of a job whose rank 0 runs on this host; None if there is no sign of one.

    It is a process that rank 0 started with `multiprocessing` and that listens on one port that rank 0 does not.
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
