"""Findings about pairs of hosts between which packets are lost, from the TCP counters of both hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, finding, gibibytes, of_topic
from ddx_tools.analysis.host_facts.sockets import ends, host_of, owners_of_addresses
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.host.packet_loss import connections, has_moved, is_shut, stalled_sockets

_SILENT_MS = 3_000
"""Far longer than a window update takes to arrive."""


@dataclass
class _Carried:
    """What all connections from one host to another hold and have carried, in the first and in the last reading."""

    first: Counter[str] = field(default_factory=Counter)
    last: Counter[str] = field(default_factory=Counter)


_Flows = dict[tuple[str, str], _Carried]
"""By host and other host, as the first of the two counts it."""


def cut_pair_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Yield a finding for each pair of captured hosts whose connection makes no progress, although both reach other
    hosts.

    A host's kernel acknowledges what arrives, whatever its processes do, so the packets do not arrive.
    """
    owners = owners_of_addresses(facts)
    flows = _flows(facts, owners)
    silent: dict[frozenset[str], list[HostFactRow]] = {}
    for socket in [*_in_flight(facts), *_without_window_update(facts, owners, flows)]:
        other = owners.get(host_of(ends(socket)[1]))
        if other and socket.host and other != socket.host:
            silent.setdefault(frozenset((socket.host, other)), []).append(socket)
    connected: dict[str, set[str]] = {}
    for host, other in [*flows, *((other, host) for host, other in flows)]:
        connected.setdefault(host, set()).add(other)
    for pair, sockets in sorted(silent.items(), key=lambda item: sorted(item[0])):
        reached = [
            {other for other in connected.get(host, set()) - pair if frozenset((host, other)) not in silent}
            for host in sorted(pair)
        ]
        if len(connected) <= len(pair) or all(reached):
            yield _cut(pair, sockets, facts, _lost(pair, flows), reach_others=all(reached))


def _flows(facts: list[HostFactRow], owners: dict[str, str]) -> _Flows:
    readings = gathered(
        ((fact.host, fact.values["local"].rpartition(":")[0], str(fact.subject).rpartition(":")[0]), fact)
        for fact in of_topic(facts, "tcp_established")
    )
    flows: _Flows = {}
    for (host, _, _), of_pair in readings.items():
        other = owners.get(host_of(ends(of_pair[0])[1]))
        if host and other and host != other:
            carried = flows.setdefault((host, other), _Carried())
            for sums, fact in ((carried.first, of_pair[0]), (carried.last, of_pair[-1])):
                sums.update({name: count for name, count in fact.values.items() if isinstance(count, int)})
    return flows


def _in_flight(facts: list[HostFactRow]) -> list[HostFactRow]:
    """Connections whose segments in flight are retransmitted without an ACK."""
    return [one for one in stalled_sockets(facts) if "local" in one.values and one.values.get("unacked", 0) > 0]


def _without_window_update(facts: list[HostFactRow], owners: dict[str, str], flows: _Flows) -> Iterator[HostFactRow]:
    """Connections that wait for room at a peer that has read everything: the peer's window update was lost.

    The peer has received exactly the acknowledged bytes, so it had room when it was read, and nothing came since then.
    """
    for readings in connections(facts):
        socket = readings[-1]
        other = owners.get(host_of(ends(socket)[1])) if "local" in socket.values else None
        here, there = flows.get((socket.host or "", other or "")), flows.get((other or "", socket.host or ""))
        if not here or not there or not is_shut(socket) or has_moved(readings):
            continue
        has_read = not there.first["unread_bytes"] and not there.last["unread_bytes"]
        # The handshake counts as an acknowledged byte on the end that connects.
        apart = here.last["acked_bytes"] - there.last["received_bytes"]
        if has_read and 0 <= apart <= here.last["sockets"] and socket.values.get("lastack", 0) >= _SILENT_MS:
            yield socket


def _lost(pair: frozenset[str], flows: _Flows) -> dict[tuple[str, str], str]:
    """What did not arrive, in words, by sender and receiver; only where no counter has moved between two readings."""
    lost = {}
    for sender, receiver in permutations(sorted(pair)):
        here, there = flows.get((sender, receiver), _Carried()), flows.get((receiver, sender), _Carried())
        still = here.first == here.last and there.first == there.last
        if not still or here.last["sockets"] != there.last["sockets"]:
            continue
        data = here.last["sent_bytes"] - there.last["received_bytes"]
        acks = here.last["received_bytes"] - there.last["acked_bytes"]
        if data > 0:
            lost[sender, receiver] = f" {gibibytes(data)} that {sender} sent did not arrive at {receiver}."
        elif acks > 0:
            lost[sender, receiver] = f" {receiver} did not receive the ACK of {sender} for {gibibytes(acks)}."
    return lost


def _cut(
    pair: frozenset[str],
    sockets: list[HostFactRow],
    facts: list[HostFactRow],
    lost: dict[tuple[str, str], str],
    *,
    reach_others: bool,
) -> Finding:
    ranks = {(fact.host, str(fact.subject)): fact.values.get("rank") for fact in of_topic(facts, "rank_process")}
    pids = [(socket.host, str(owner["pid"])) for socket in sockets for owner in socket.values.get("owners") or []]
    of_pair = [rank for (host, _), rank in ranks.items() if host in pair]
    of_sockets = {rank for pid in pids if (rank := ranks.get(pid)) is not None}
    first, second = sorted(pair)
    again = max((int(one.values.get("backoff", 0)) for one in sockets if not is_shut(one)), default=None)
    if again is not None:
        words = f"its oldest segment was retransmitted {again} times without an ACK"
    else:
        held = gibibytes(sum(one.values.get("unsent_bytes", 0) for one in sockets))
        words = f"{sockets[0].host} still waits to send {held}, but its peer has read everything and has room"
    return finding(
        "network.pair_cut",
        Severity.WARNING,
        sockets,
        f"A TCP connection between {first} and {second} makes no progress: {words}, "
        f"although both hosts are up{' and reach others' if reach_others else ''}.{''.join(lost.values())}",
        again=again,
        between=[first, second],
        lost=[f"{sender} to {receiver}" for sender, receiver in lost],
        ranks=sorted({rank for rank in of_pair if rank is not None} if len(of_pair) == len(pair) else of_sockets),
        about=[first, second],
        named=True,
    )
