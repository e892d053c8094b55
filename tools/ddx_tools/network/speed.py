"""Findings about throughput: what iperf3 and perftest measured between two hosts. Links differ: there is no verdict."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.model import Finding, Severity
from ddx_tools.network.check import Check, finding

LOSSY, FEW = 1e-3, 1e-4
"""Shares of packets sent again: from the first a collective suffers; below the second a network is well."""


def speed_findings(checks: list[Check]) -> Iterator[Finding]:
    """What was measured, and what was sent again meanwhile."""
    for check in checks:
        if check.what in ("iperf3", "perftest") and check.outcome == "measured":
            yield _throughput(check)
        if check.what == "iperf3":
            yield from _sent_again(check)


def _throughput(check: Check) -> Finding:
    facts = check.facts
    tool = {"iperf3": "TCP (iperf3)", "perftest": f"RDMA writes ({facts.get('device')}, ib_write_bw)"}[check.what]
    quiet = facts.get("quiet_intervals") or None
    standstill = f"; in {quiet} of {facts['intervals']} seconds nothing was sent" if quiet else ""
    return finding(
        "network.throughput",
        Severity.INFO,
        [check],
        f"{tool} from {check.host} to {check.peer_text}: {facts['gbit_per_s']:.3g} Gbit/s{standstill}.",
        peer=check.peer,
        tool=check.what,
        gbit_per_s=round(facts["gbit_per_s"], 3),
        quiet_s=quiet,
        device=facts.get("device"),
    )


def _sent_again(check: Check) -> Iterator[Finding]:
    share = check.facts.get("share_sent_again")
    if share is None or share < FEW:
        return
    # A wire that loses packets does so in every second; a host that was busy for a moment, in one.
    lossy = check.facts["usual_share_sent_again"] >= LOSSY
    yield finding(
        "network.packet_loss",
        Severity.WARNING if lossy else Severity.NOTICE,
        [check],
        f"While iperf3 sent from {check.host} to {check.peer_text}, TCP sent {share:.2%} of its segments again.",
        counters={"sent_again": check.facts["sent_again"]},
        rate=round(share, 6),
        how="iperf3",
        peer=check.peer,
    )
