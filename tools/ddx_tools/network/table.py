"""What was tried, as a table that a person reads in ten seconds."""

from __future__ import annotations

from typing import Any

from ddx_tools.network.check import Check, read_checks
from ddx_tools.store import Store

_WORDS = {
    "all": "arrives",
    "some": "some arrive",
    "silent": "vanishes",
    "too_long_here": "too long, says this host",
    "too_long_on_way": "too long, says a router",
    "timed_out": "no answer",
    "no_route": "no route",
}
_FLOWS = """
SELECT client, server, packets, client_again + server_again AS sent_again, duplicate_acks,
    client_zero_windows + server_zero_windows AS zero_windows, client_resets + server_resets AS resets, setup
FROM network_flows
ORDER BY setup IN ('refused', 'unanswered') DESC, sent_again DESC, zero_windows DESC, resets DESC, packets DESC"""


def network_table(store: Store) -> list[dict[str, Any]]:
    """Each check with its outcome; of captures each connection, the worst first."""
    return [_row(check) for check in read_checks(store)] + store.query(_FLOWS)


def _row(check: Check) -> dict[str, Any]:
    return {
        "check": check.what if check.what != "size" else f"packet of {check.facts['size_bytes']} bytes",
        "peer": check.peer_text,
        "port": check.port,
        "outcome": _WORDS.get(check.outcome, check.outcome),
        "said": check.evidence.quote,
    }
