"""Flight records from the worker servers of `torch.distributed.debug` (torch 2.10 and later).

Each rank's server answers `POST /handler/fr_trace_json`. It says neither rank nor members of groups, and no
port of a training job is tried unasked: whoever names an endpoint names its rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddx_tools.model.errors import HostError, UsageError
from ddx_tools.sources.host import Host, Reply, ask_together

_ENDPOINT = re.compile(r"(\d{1,7})=(https?://[^/\s]+)/?")


def parse_endpoint(text: str) -> tuple[int, str]:
    """(rank, base URL) of `RANK=http://host:port`. Raises UsageError."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:200]!r} does not name a rank's debug endpoint.",
            "Write RANK=URL for each rank, for example: --endpoint 0=http://node1:41234",
        )
    return int(match[1]), match[2]


def ask_endpoints(
    host: Host, endpoints: Sequence[str], handler: str, timeout_s: float
) -> list[tuple[int, str, Reply | HostError]]:
    """What a handler of each named worker server answers, all asked at once: rank, URL, answer."""
    named = [parse_endpoint(text) for text in endpoints]

    def fetch(endpoint: tuple[int, str]) -> Reply:
        return host.fetch(f"{endpoint[1]}/handler/{handler}", method="POST", timeout_s=timeout_s)

    return [(*one, reply) for one, reply in ask_together(fetch, named, max(16, len(named)))]
