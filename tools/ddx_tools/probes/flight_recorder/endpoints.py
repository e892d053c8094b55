"""Flight records from the worker servers of `torch.distributed.debug`."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_tools.model.errors import HostError
from ddx_tools.probes.flight_recorder.material import DUMP
from ddx_tools.sources.host import Host
from ddx_tools.sources.hosts.debug_endpoints import ask_endpoints
from ddx_tools.sources.raw import Raw, RawItem

_TIMEOUT_S = 8.0


def read_endpoints(host: Host, raw: Raw, endpoints: Sequence[str]) -> None:
    """Add the records that the named worker servers give."""
    # The answers do not say when they were made: not before this.
    asked_ns = int(host.now() * 1e9)
    for rank, url, reply in ask_endpoints(host, endpoints, "fr_trace_json", _TIMEOUT_S):
        if isinstance(reply, HostError):
            raw.failed(f"flight record of rank {rank} at {url}", reply, "it cannot be compared with its peers")
        else:
            facts = {"origin": "endpoint", "rank": rank, "taken_ns": asked_ns}
            raw.items.append(RawItem(DUMP, reply.data, reply.source or url, facts))
    raw.searched.append(f"{len(endpoints)} debug endpoints")
