"""Findings about the network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import read_facts
from ddx_tools.analysis.host_facts.sockets import owners_of_addresses
from ddx_tools.analysis.nccl.ras_findings import ras_findings
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.network.check import BASIS, NetworkCheck, finding, read_checks
from ddx_tools.probes.network.path_mtu import IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES, LEAST_MTU_BYTES
from ddx_tools.probes.network.reach import reach_findings


def network_findings(store: Store) -> list[Finding]:
    """Return the findings about `network_checks`, `network_flows` and, if it answered, NCCL's RAS."""
    checks = read_checks(store)
    return [
        *reach_findings(checks, _hosts(store) if checks else {}),
        *path_findings(checks),
        *speed_findings(checks),
        *flow_findings(store),
        *ras_findings(store),
    ]


def _hosts(store: Store) -> dict[str, str]:
    """The captured hosts, by name and by address."""
    names = store.query("SELECT DISTINCT host FROM host_facts WHERE host IS NOT NULL")
    return {row["host"]: row["host"] for row in names} | owners_of_addresses(read_facts(store))


# --- findings about captured connections: never answered, refused, with retransmissions, or with a zero window

_LEAST_WITH_DATA = 100
_LEAST_AGAIN = 3
_MOST_SHOWN = 6
_MOST_FINDINGS = 20

Flow = dict[str, Any]


def flow_findings(store: Store) -> list[Finding]:
    """Return the findings about `network_flows`; each kind covers the worst connections."""
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
        times = f", sent {flow['syns']} times," if flow["syns"] > 1 else ""
        yield _finding(
            "startup.endpoint_unreachable",
            Severity.WARNING,
            [flow],
            f"The connection request from {client} to {flow['server']}{times} {words}.",
            address=address.strip("[]"),
            port=int(port),
            how=how,
            stage="store",
        )


def _lossy(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Retransmissions over all connections of a capture: a single connection may be too short to judge."""
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
            f"{share:.2%} of the captured packets with data ({again} of {sent}) were retransmitted, most of them "
            f"between {worst['client']} and {worst['server']} ({_again(worst)} of {worst['with_data']}).",
            counters={"sent_again": again, "duplicate_acks": sum(flow["duplicate_acks"] for flow in of_capture)},
            rate=round(share, 6),
            how="capture",
        )


def _shut(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Ends that stop their peer from sending, because their program does not read."""
    ends = [(flow, f"{side}_zero_windows", side) for flow in flows for side in ("client", "server")]
    shut = sorted((one for one in ends if one[0][one[1]]), key=lambda one: -one[0][one[1]])
    for flow, counter, side in shut[:_MOST_SHOWN]:
        other = "server" if side == "client" else "client"
        words = (
            f"{flow[side]} told {flow[other]} {flow[counter]} times to stop sending (zero window): its program does "
            "not read what arrives."
        )
        yield _finding(
            "network.unread_bytes", Severity.NOTICE, [flow], words, local=flow[side], peer=flow[other], window_shut=True
        )


def _reset(flows: Sequence[Flow]) -> Iterator[Finding]:
    """Established connections that ended with a reset. Exiting processes cause resets too."""
    reset = [flow for flow in flows if flow["setup"] != "refused" and flow["client_resets"] + flow["server_resets"]]
    if reset:
        by = "client" if reset[0]["client_resets"] else "server"
        words = (
            f"{len(reset)} captured connections ended with a reset, the first by {reset[0][by]}: a process that exits "
            "with unread bytes causes that, and so does a firewall that lost the connection's state."
        )
        yield _finding("network.connection_failed", Severity.INFO, reset, words, how="reset", peer=reset[0][by])


def _again(flow: Flow) -> int:
    return int(flow["client_again"] + flow["server_again"])


def _by_capture(flows: Sequence[Flow]) -> list[list[Flow]]:
    return list(gathered((flow["capture"], flow) for flow in flows).values())


def _finding(code: str, severity: Severity, flows: Sequence[Flow], summary: str, **attributes: Any) -> Finding:
    evidence = [
        Evidence(source=flow["source"], line=flow["source_line"], quote=f"{flow['client']} {flow['server']}")
        for flow in flows[:_MOST_SHOWN]
    ]
    return Finding(
        code=code, severity=severity, summary=summary, evidence=evidence, attributes={**attributes, "basis": BASIS}
    )


# --- findings about the path to a peer: the largest packet, and packet loss

_LEAST_PINGS = 50
_LOSSY = 0.01
_SINGLE = 1
"""One packet in a hundred may be lost by chance: a full queue, an address resolution."""


def path_findings(checks: list[NetworkCheck]) -> Iterator[Finding]:
    """Yield the findings about packet loss and path MTU."""
    sizes: dict[tuple[str, str], list[NetworkCheck]] = defaultdict(list)
    for check in checks:
        if check.what == "ping":
            yield from _lost(check)
        elif check.what == "size":
            sizes[check.host, check.peer].append(check)
    for tried in sizes.values():
        yield from _path_mtu(tried)


def _lost(check: NetworkCheck) -> Iterator[Finding]:
    sent, received = check.facts["sent"], check.facts["received"]
    lost = sent - received
    if not received or sent < _LEAST_PINGS or lost <= _SINGLE:
        return
    share = lost / sent
    yield finding(
        "network.packet_loss",
        Severity.WARNING if share >= _LOSSY else Severity.NOTICE,
        [check],
        f"{lost} of {sent} small pings from {check.host} to {check.peer_text} were lost ({share:.1%}).",
        counters={"sent": sent, "received": received},
        rate=round(share, 6),
        how="ping",
        peer=check.peer,
    )


def _path_mtu(tried: list[NetworkCheck]) -> Iterator[Finding]:
    """The largest size that arrived; a warning if a larger one vanishes without an ICMP error.

    If this host or a router says that a packet is too long, TCP receives that too and sends smaller ones.
    """
    arrived = [check for check in tried if check.facts["received"]]
    silent = [check for check in tried if check.outcome == "silent"]
    told = [check for check in tried if check.outcome in ("too_long_here", "too_long_on_way")]
    largest = max((check.facts["size_bytes"] for check in arrived), default=LEAST_MTU_BYTES)
    lost = [check for check in silent if check.facts["size_bytes"] > largest]
    first = tried[0]
    attributes = {
        "peer": first.peer,
        "interface": first.facts.get("interface"),
        "interface_mtu_bytes": first.facts["interface_mtu"],
        "arrives_bytes": largest,
    }
    if lost:
        smallest = min(lost, key=lambda check: check.facts["size_bytes"])
        vanishes = smallest.facts["size_bytes"]
        yield finding(
            "network.mtu_differs",
            Severity.WARNING,
            [smallest, *arrived[-1:], *lost],
            f"From {first.host} to {first.peer_text}, packets of {_sum(smallest)} vanish without an error, and those "
            f"of {largest} arrive; {first.facts['interface']} sends up to {first.facts['interface_mtu']}.",
            how="path",
            vanishes_bytes=vanishes,
            **attributes,
        )
    elif arrived or told:
        size = _sum(max(arrived, key=_size)) if arrived else f"{largest} bytes"
        yield finding(
            "network.path_mtu",
            Severity.INFO,
            [*arrived[-1:], *told],
            f"From {first.host} to {first.peer_text}, packets of up to {size} arrive in one piece, "
            f"{_who_told(told, first)}.",
            told_by=next(("hop" if one.outcome == "too_long_on_way" else "host" for one in told), None),
            **attributes,
        )


def _who_told(told: list[NetworkCheck], first: NetworkCheck) -> str:
    if not told:
        return f"the largest that {first.facts['interface']} sends"
    hop = next((one.facts["hop"] for one in told if one.facts.get("hop")), None)
    return f"and {hop or 'the host itself'} says that larger ones are too long, so TCP sends smaller ones"


def _size(check: NetworkCheck) -> int:
    return int(check.facts["size_bytes"])


def _sum(check: NetworkCheck) -> str:
    """The size of a packet with its arithmetic, which is easy to get wrong: `1500 bytes (1472 of data + 28 of
    headers)`."""
    size = _size(check)
    overhead = IPV6_OVERHEAD_BYTES if ":" in (check.address or "") else IPV4_OVERHEAD_BYTES
    return f"{size} bytes ({size - overhead} of data + {overhead} of headers)"


# --- findings about throughput that iperf3 and perftest measured between two hosts. Links differ, so there is no
# verdict

LOSSY, FEW = 1e-3, 1e-4
"""Shares of retransmitted packets: at the first, collectives suffer; below the second, the network is healthy."""


def speed_findings(checks: list[NetworkCheck]) -> Iterator[Finding]:
    """Yield the measured throughput, and the retransmissions during the measurement."""
    for check in checks:
        if check.what in ("iperf3", "perftest") and check.outcome == "measured":
            yield _throughput(check)
        if check.what == "iperf3":
            yield from _sent_again(check)


def _throughput(check: NetworkCheck) -> Finding:
    facts = check.facts
    tool = {"iperf3": "TCP (iperf3)", "perftest": f"RDMA writes ({facts.get('device')}, ib_write_bw)"}[check.what]
    quiet = facts.get("quiet_intervals") or None
    where = " (itself: not over a network)" if facts.get("here") else ""
    standstill = f"; in {quiet} of {facts['intervals']} seconds, nothing was sent" if quiet else ""
    return finding(
        "network.throughput",
        Severity.INFO,
        [check],
        f"{tool} from {check.host} to {check.peer_text}{where}: {facts['gbit_per_s']:.3g} Gbit/s{standstill}.",
        peer=check.peer,
        tool=check.what,
        gbit_per_s=round(facts["gbit_per_s"], 3),
        quiet_s=quiet,
        device=facts.get("device"),
    )


def _sent_again(check: NetworkCheck) -> Iterator[Finding]:
    share = check.facts.get("share_sent_again")
    if share is None or share < FEW or check.facts.get("here"):  # a host loses no packets to itself
        return
    # A lossy link loses packets in every second; a host that was briefly busy, in one.
    lossy = check.facts["usual_share_sent_again"] >= LOSSY
    yield finding(
        "network.packet_loss",
        Severity.WARNING if lossy else Severity.NOTICE,
        [check],
        f"While iperf3 sent from {check.host} to {check.peer_text}, TCP retransmitted {share:.2%} of its segments.",
        counters={"sent_again": check.facts["sent_again"]},
        rate=round(share, 6),
        how="iperf3",
        peer=check.peer,
    )


# --- the checks, as a table that a person reads in ten seconds

_WORDS = {
    "all": "arrives",
    "some": "some arrive",
    "silent": "vanishes",
    "too_long_here": "this host says: too long",
    "too_long_on_way": "a router says: too long",
    "timed_out": "no answer",
    "no_route": "no route",
}
_FLOWS = """
SELECT client, server, packets, client_again + server_again AS sent_again, duplicate_acks,
    client_zero_windows + server_zero_windows AS zero_windows, client_resets + server_resets AS resets, setup
FROM network_flows
ORDER BY setup IN ('refused', 'unanswered') DESC, sent_again DESC, zero_windows DESC, resets DESC, packets DESC"""


def network_table(store: Store) -> list[dict[str, Any]]:
    """Return the rows to show: each check with its outcome, or each captured connection, the worst first."""
    return [_row(check) for check in read_checks(store)] + store.query(_FLOWS)


def _row(check: NetworkCheck) -> dict[str, Any]:
    return {
        "check": check.what if check.what != "size" else f"packet of {check.facts['size_bytes']} bytes",
        "peer": check.peer_text,
        "port": check.port,
        "outcome": _WORDS.get(check.outcome, check.outcome),
        "said": check.evidence.quote,
    }
