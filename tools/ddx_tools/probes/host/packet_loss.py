"""Findings about packets that do not arrive: too large for the path, or lost and retransmitted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_place, finding, of_topic
from ddx_tools.analysis.host_facts.sockets import ends, host_of, owned_by_others
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_STALLED_BACKOFF = 3
"""How many times in a row the same segment was lost (doublings of the retransmission timer)."""
_LOSSY, _FEW = 1e-3, 1e-4
"""Shares of retransmitted segments: at the first, collectives suffer; below the second, the network is healthy."""
_LOSSY_NOW = 1e-2
_LEAST_SENT = 1_000
_LEAST_LOST = 10
_HEADERS_BYTES = 28
"""IPv4 and ICMP headers around the data of a ping."""

LOSS = re.compile(r"out_of_sequence|packet_seq_err|adp_retrans|discard|drop", re.I)
"""Counters of packets that never arrived or were dropped for lack of buffers; a bad cable raises symbol errors
instead."""


def loss_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield all findings about packet loss, except those from port counters."""
    for pings in gathered(((ping.host, ping.subject), ping) for ping in of_topic(facts, "ping")).values():
        yield from _too_large(pings)
    yield from _stalled(facts)
    yield from _sent_again_to_others([readings[-1] for readings in connections(facts)])
    looked_at = {fact.host for fact in of_topic(facts, "look")}
    for readings in by_place(of_topic(facts, "tcp_counters")):
        live = readings[0].host is not None and readings[0].host in looked_at
        yield from _sent_again_now(readings) if live else _sent_again(readings)
    by_device = gathered(
        ((counters.host, counters.subject, counters.values.get("of_series")), counters)
        for counters in of_topic(facts, "nic_counters")
    )
    for readings in by_device.values():
        yield from _dropped(readings)


def _too_large(pings: list[HostFactRow]) -> Iterator[Finding]:
    """Small packets arrive, but large ones that must not be fragmented vanish, and no host says that they are too
    large.

    If this host's interface or a router rejects the size, ping says so, and TCP receives that too.
    """
    arrived = [ping for ping in pings if ping.values["received"]]
    vanished = [
        ping
        for ping in pings
        if ping.values.get("whole") is not False
        and ping.values["sent"]
        and not ping.values["received"]
        and not ping.values["refused"]
    ]
    largest = max((ping.values["size_bytes"] for ping in arrived), default=None)
    if largest is None:
        return
    lost = [ping for ping in vanished if ping.values["size_bytes"] > largest]
    if not lost:
        return
    least = min(ping.values["size_bytes"] for ping in lost)
    # Without the command, fragmentation may have been allowed, and a fragment may have been lost.
    certain = any(ping.values.get("whole") for ping in lost)
    yield finding(
        "network.mtu_differs",
        Severity.WARNING if certain else Severity.NOTICE,
        [*lost, *arrived],
        f"Packets of {least + _HEADERS_BYTES} bytes to {lost[0].subject} vanish, whereas those of "
        f"{largest + _HEADERS_BYTES} arrive, and no hop reports that they are too large.",
        how="path",
        peer=lost[0].subject,
        arrives_bytes=largest + _HEADERS_BYTES,
        vanishes_bytes=least + _HEADERS_BYTES,
    )


def connections(facts: list[HostFactRow]) -> list[list[HostFactRow]]:
    """The readings of each connection; a reading without addresses counts as a connection of its own."""
    others = owned_by_others(facts)
    found: dict[object, list[HostFactRow]] = {}
    for place, socket in enumerate(one for one in of_topic(facts, "tcp_socket") if not others(one)):
        found.setdefault((socket.host, ends(socket)) if "local" in socket.values else place, []).append(socket)
    return list(found.values())


def has_moved(readings: list[HostFactRow]) -> bool:
    """Whether a connection carried anything between its first and its last reading."""
    first, last = readings[0].values, readings[-1].values
    return any(first.get(name) != last.get(name) for name in ("bytes_acked", "bytes_received"))


def is_shut(socket: HostFactRow) -> bool:
    """Whether the peer's receive window was full: bytes wait, and none is in flight. The peer does answer."""
    if timer := socket.values.get("timer"):
        return bool(timer == "persist")
    return "notsent" in socket.values and "unacked" not in socket.values


def stalled_sockets(facts: list[HostFactRow]) -> list[HostFactRow]:
    """Return the connections whose oldest segment is retransmitted repeatedly without an ACK."""
    return [
        readings[-1]
        for readings in connections(facts)
        # A connection still being requested never existed.
        if readings[-1].values.get("backoff", 0) >= _STALLED_BACKOFF
        and readings[-1].values.get("state") != "syn-sent"
        and not is_shut(readings[-1])
        and not has_moved(readings)
    ]


def _stalled(facts: list[HostFactRow]) -> Iterator[Finding]:
    for socket in stalled_sockets(facts):
        named = ("again", "backoff", "cwnd", "mss", "pmtu", "rto")
        counters = {name: socket.values[name] for name in named if name in socket.values}
        words = (
            f"A TCP connection to {socket.subject or 'a peer'} makes no progress: its oldest segment was retransmitted "
            f"{socket.values['backoff']} times in a row without an ACK."
        )
        yield finding("network.packet_loss", Severity.WARNING, [socket], words, counters=counters, how="stalled")


def _sent_again_to_others(sockets: list[HostFactRow]) -> Iterator[Finding]:
    """Connections to other hosts with a large share of retransmissions since they were established.

    A host's counters also cover its connections to itself and those of all other programs. Segments that the peer
    already had (`dsack_dups`) were retransmitted needlessly and are not losses.
    """
    lossy: dict[tuple[str | None, str], list[tuple[int, HostFactRow]]] = defaultdict(list)
    for socket in sockets:
        sent = socket.values.get("data_segs_out", 0)
        again = socket.values.get("again", 0) - socket.values.get("dsack_dups", 0)
        if "local" not in socket.values or sent < _LEAST_SENT or again < _LOSSY_NOW * sent:
            continue
        local, peer = map(host_of, ends(socket))
        if local != peer:
            lossy[socket.host, peer].append((again, socket))
    for (_, peer), found in lossy.items():
        again = sum(count for count, _ in found)
        sent = sum(socket.values["data_segs_out"] for _, socket in found)
        yield finding(
            "network.packet_loss",
            Severity.WARNING,
            [socket for _, socket in found],
            f"TCP retransmitted {again / sent:.1%} of its segments to {peer} since the connections were established.",
            [place for _, socket in found for place in socket.evidence_of("retrans")],
            counters={"retrans": again, "data_segs_out": sent},
            rate=round(again / sent, 4),
            how="since_connected",
            peer=peer,
        )


def _sent_again(readings: list[HostFactRow]) -> Iterator[Finding]:
    """The share of segments that TCP retransmitted between two readings, or since boot, which says less."""
    whole = [one for one in readings if {"sent", "again"} <= set(one.values)]
    if not whole:
        return
    last, first = whole[-1].values, whole[0].values
    between = len(whole) > 1 and last["sent"] > first["sent"] and last["again"] >= first["again"]
    sent = last["sent"] - first["sent"] if between else last["sent"]
    again = last["again"] - first["again"] if between else last["again"]
    share = again / sent if sent >= _LEAST_SENT else 0.0
    if share < (_FEW if between else _LOSSY):
        return
    yield finding(
        "network.packet_loss",
        Severity.WARNING if between and share >= _LOSSY else Severity.NOTICE,
        whole,
        f"TCP retransmitted {share:.2%} of its segments {'between two readings' if between else 'since boot'}.",
        counters={"TcpRetransSegs": again, "TcpOutSegs": sent},
        rate=share,
        how="between_readings" if between else "since_boot",
    )


def _sent_again_now(readings: list[HostFactRow]) -> Iterator[Finding]:
    """Like `_sent_again`, within the second of a live capture, for all of the host's traffic.

    That includes its connections to itself, which on a busy host needlessly retransmit a few segments per thousand.
    """
    first, last = readings[0].values, readings[-1].values
    sent, again = last["sent"] - first["sent"], last["again"] - first["again"]
    if sent >= _LEAST_SENT and again >= _LOSSY_NOW * sent:
        for found in _sent_again(readings):
            yield found.model_copy(update={"attributes": {**found.attributes, "of": "machine"}})


def _dropped(readings: list[HostFactRow]) -> Iterator[Finding]:
    """Packets that an interface dropped or found damaged between two samples.

    Totals since boot mean nothing: every interface drops unwanted packets, such as unknown protocols.
    """
    first, last = readings[0].values, readings[-1].values
    grown = {name: last[name] - first.get(name, 0) for name in last if name.endswith(("_drops", "_errors"))}
    lost = {name: count for name, count in grown.items() if count >= _LEAST_LOST}
    packets = sum(last.get(name, 0) - first.get(name, 0) for name in ("received", "sent"))
    share = sum(lost.values()) / max(1, packets + sum(lost.values()))
    if len(readings) < 2 or not lost or share < _LOSSY:
        return
    named = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in lost.items())
    yield finding(
        "network.packet_loss",
        Severity.WARNING,
        readings,
        f"{readings[0].subject} lost {share:.2%} of its packets between two samples ({named}).",
        counters=lost,
        rate=round(share, 6),
        how="between_readings",
        device=readings[0].subject,
    )


def port_losses(ports: list[HostFactRow], shown: dict[str, int], *, growing: bool, **facts: Any) -> Iterator[Finding]:
    """Yield a finding about losses in one port's error counters; `shown`: how far each grew, or else its total."""
    losses = {name: count for name, count in shown.items() if LOSS.search(name)}
    if not losses:
        return
    worst = sorted(losses.items(), key=lambda item: -item[1])[:4]
    named = ", ".join(f"{name} {count}" for name, count in worst)
    yield finding(
        "network.packet_loss",
        Severity.WARNING if growing else Severity.NOTICE,
        ports,
        f"{facts.get('device') or 'A port'}: packets are lost or retransmitted "
        f"({'counters grew by' if growing else 'totals'}: {named}).",
        counters=losses,
        how="between_readings" if growing else "since_boot",
        **facts,
    )
