"""Reads flight records from the worker servers of `torch.distributed.debug`."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model.errors import HostError
from ddx_tools.probes.flight_recorder.material import DUMP
from ddx_tools.sources.host import Host
from ddx_tools.sources.hosts.debug_endpoints import DebugServer, ask_endpoints
from ddx_tools.sources.raw import Raw, RawItem

_TIMEOUT_S = 8.0


def read_endpoints(host: Host, raw: Raw, endpoints: Sequence[str]) -> None:
    """Add the records from the named worker servers."""
    # The answers have no time; they are not older than this.
    asked_ns = int(host.now() * 1e9)
    for rank, url, reply in ask_endpoints(host, endpoints, "fr_trace_json", _TIMEOUT_S):
        if isinstance(reply, HostError):
            raw.failed(f"flight record of rank {rank} at {url}", reply, "it cannot be compared with its peers")
        else:
            facts = {"origin": "endpoint", "rank": rank, "taken_ns": asked_ns}
            raw.items.append(RawItem(DUMP, reply.data, reply.source or url, facts))
    raw.searched.append(f"{len(endpoints)} debug endpoints")


_ANSWERS_S = 4.0


def read_server(host: Host, raw: Raw, address: str) -> None:
    """Add the records of all ranks that torch's debug server at `HOST:PORT` knows. Raises HostError if there is none.

    Only ranks whose server answers are waited for; the stacks probe reports the silent ones.
    """
    server = DebugServer.at(host, address)
    asked_ns = int(host.now() * 1e9)
    answers = server.ask("fr_trace_json", _ANSWERS_S, server.awake)
    for worker, reply in answers:
        if isinstance(reply, HostError):
            raw.failed(f"flight record of rank {worker.rank}", reply, "it cannot be compared with its peers")
            continue
        facts = {"origin": "endpoint", "rank": worker.rank, "host": worker.host, "taken_ns": asked_ns}
        raw.items.append(RawItem(DUMP, reply.data, f"{reply.source or server.url}", facts))
    for worker, _ in server.silent:
        silent = HostError(f"its debug server at {worker.url} does not answer", "")
        raw.failed(f"flight record of rank {worker.rank}", silent, "it cannot be compared with its peers")
    raw.searched.append(f"{len(server.awake)} of {len(server.workers)} ranks through the debug server at {address}")
