"""Findings about captured connections: never answered, refused, full of what was sent again, or with a shut window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.model import Evidence, Finding, Severity
from ddx_tools.network.check import BASIS
from ddx_tools.network.speed import FEW, LOSSY
from ddx_tools.store import Store

_LEAST_WITH_DATA = 100
_LEAST_AGAIN = 3
_MOST_SHOWN = 6
_MOST_FINDINGS = 20

Flow = dict[str, Any]


def flow_findings(store: Store) -> list[Finding]:
    """Findings of `network_flows`, of each kind those of the connections that it is worst for."""
    flows = store.query("SELECT * FROM network_flows ORDER BY capture, source_line")
    return [*_never_made(flows), *_lossy(flows), *_shut(flows), *_reset(flows)]


def _never_made(flows: Sequence[Flow]) -> Iterator[Finding]:
    hows = {"refused": ("refused", "was answered with a reset"), "unanswered": ("timed_out", "was never answered")}
    told: set[tuple[str, str]] = set()
    for flow in flows:
        if flow["setup"] not in hows or (flow["server"], flow["setup"]) in told or len(told) >= _MOST_FINDINGS:
            continue
        told.add((flow["server"], flow["setup"]))
        how, words = hows[flow["setup"]]
        address, _, port = flow["server"].rpartition(":")
        client = flow["client"].rpartition(":")[0]
        times = f", which was sent {flow['syns']} times," if flow["syns"] > 1 else ""
        yield _finding(
            "startup.endpoint_unreachable",
            Severity.WARNING,
            [flow],
            f"The request of {client} for a connection to {flow['server']}{times} {words}.",
            address=address.strip("[]"),
            port=int(port),
            how=how,
            stage="store",
        )


def _lossy(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Over all connections of a capture: a single one may be too short to count."""
    for of_capture in _by_capture(flows):
        lossy = [flow for flow in of_capture if _again(flow)]
        again, sent = sum(map(_again, lossy)), sum(flow["with_data"] for flow in of_capture)
        if sent < _LEAST_WITH_DATA or again < _LEAST_AGAIN or again < FEW * sent:
            continue
        lossy.sort(key=_again, reverse=True)
        share = again / sent
        worst = lossy[0]
        yield _finding(
            "network.packet_loss",
            Severity.WARNING if share >= LOSSY else Severity.NOTICE,
            lossy,
            f"Of the captured packets with data {share:.2%} ({again} of {sent}) were sent again, most of them between "
            f"{worst['client']} and {worst['server']} ({_again(worst)} of {worst['with_data']}).",
            counters={"sent_again": again, "duplicate_acks": sum(flow["duplicate_acks"] for flow in of_capture)},
            rate=round(share, 6),
            how="capture",
        )


def _shut(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Ends that let their peer send nothing more: their program does not read."""
    ends = [(flow, f"{side}_zero_windows", side) for flow in flows for side in ("client", "server")]
    shut = sorted((one for one in ends if one[0][one[1]]), key=lambda one: -one[0][one[1]])
    for flow, counter, side in shut[:_MOST_SHOWN]:
        other = "server" if side == "client" else "client"
        yield _finding(
            "network.unread_bytes",
            Severity.NOTICE,
            [flow],
            f"{flow[side]} told {flow[other]} {flow[counter]} times to send nothing more (zero window): its program "
            "does not read what arrives.",
            local=flow[side],
            peer=flow[other],
            window_shut=True,
        )


def _reset(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Connections that ended with a reset after they had been made. Processes that end do that, too."""
    reset = [flow for flow in flows if flow["setup"] != "refused" and flow["client_resets"] + flow["server_resets"]]
    if reset:
        by = "client" if reset[0]["client_resets"] else "server"
        yield _finding(
            "network.connection_failed",
            Severity.INFO,
            reset,
            f"{len(reset)} captured connections ended with a reset, the first by {reset[0][by]}: a process that ends "
            "with unread bytes does that, and so does a firewall that forgot the connection.",
            how="reset",
            peer=reset[0][by],
        )


def _again(flow: Flow) -> int:
    return int(flow["client_again"] + flow["server_again"])


def _by_capture(flows: Sequence[Flow]) -> list[list[Flow]]:
    grouped: dict[str, list[Flow]] = {}
    for flow in flows:
        grouped.setdefault(flow["capture"], []).append(flow)
    return list(grouped.values())


def _finding(code: str, severity: Severity, flows: Sequence[Flow], summary: str, **attributes: Any) -> Finding:
    evidence = [
        Evidence(source=flow["source"], line=flow["source_line"], quote=f"{flow['client']} {flow['server']}")
        for flow in flows[:_MOST_SHOWN]
    ]
    return Finding(
        code=code, severity=severity, summary=summary, evidence=evidence, attributes={**attributes, "basis": BASIS}
    )
