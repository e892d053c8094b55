"""Findings about connections whose packets are not answered: they are dropped on the way, or at a port of a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddx_tools.machine.loss import stalled_sockets
from ddx_tools.machine.seen import Seen, by_host, finding, of_topic
from ddx_tools.machine.sockets import ends, host_of, owned_by_others
from ddx_tools.model import Finding, Severity

_LEAST_BACKOFF = 2
"""Doublings of the timer of the first packet, which begins with a second: three were sent, for three seconds."""


def unanswered_findings(facts: list[Seen]) -> Iterator[Finding]:
    """Who gets no answer, and, where the address is one of a host that was looked at, whose port is silent.

    A host is named if others get no answer from it, either, or if a connection stands between it and the one that asks.
    Else the way may be broken, or the asker's own firewall; and it is if both ask each other in vain.
    """
    owners = owners_of_addresses(facts)
    others = owned_by_others(facts)
    sockets = [socket for socket in of_topic(facts, "tcp_socket") if not others(socket)]
    silent = {ends(socket): socket for socket in sockets if _is_unanswered(socket)}
    between = {(socket.host, owners.get(host_of(peer))) for (_, peer), socket in silent.items()}
    connected = {(fact.host, owners.get(host_of(ends(fact)[1]))) for fact in of_topic(facts, "tcp_established")}
    masters = {(fact.host, fact.values.get("master")) for fact in of_topic(facts, "job")}
    told: set[tuple[str | None, str]] = set()
    for (_, peer), socket in silent.items():
        if (socket.host, peer) in told:
            continue
        told.add((socket.host, peer))
        yield _unreachable(socket, peer, at_store=any(_port_of(peer) == _port_of(at or "") for _, at in masters))
        owner = owners.get(host_of(peer))
        ways = {(socket.host, owner), (owner, socket.host)}
        others_ask = any(of == owner and host not in (owner, socket.host) for host, of in between)
        if owner and owner != socket.host and not ways <= between and (others_ask or ways & connected):
            yield _closed(owner, socket, peer)


def cut_pair_findings(facts: list[Seen]) -> Iterator[Finding]:
    """Pairs of hosts between which a connection stands still, while each of them is looked at and reaches others.

    The kernel of a host acknowledges what comes, whatever its processes do. So the packets do not come.
    """
    owners = owners_of_addresses(facts)
    ranks = {(fact.host, str(fact.subject)): fact.values.get("rank") for fact in of_topic(facts, "rank_process")}
    stalled: dict[frozenset[str], list[Seen]] = {}
    for socket in stalled_sockets(facts):
        owner = owners.get(host_of(ends(socket)[1])) if "local" in socket.values else None
        # Where a window is shut, nothing is on its way: the peer answers, and does not read.
        if socket.values.get("unacked", 0) > 0 and owner and socket.host and owner != socket.host:
            stalled.setdefault(frozenset((socket.host, owner)), []).append(socket)
    connected: dict[str, set[str]] = {}
    for fact in of_topic(facts, "tcp_established"):
        if fact.host and (owner := owners.get(host_of(ends(fact)[1]))):
            connected.setdefault(fact.host, set()).add(owner)
            connected.setdefault(owner, set()).add(fact.host)
    for pair, sockets in sorted(stalled.items(), key=lambda item: sorted(item[0])):
        others = [
            {other for other in connected.get(host, set()) - pair if frozenset((host, other)) not in stalled}
            for host in sorted(pair)
        ]
        if len(connected) > len(pair) and not all(others):
            continue
        pids = [(socket.host, str(owner["pid"])) for socket in sockets for owner in socket.values.get("owners") or []]
        of_peers = [rank for (host, _), rank in ranks.items() if host in pair]
        told = {ranks[pid] for pid in pids if ranks.get(pid) is not None}
        again = max(int(socket.values["backoff"]) for socket in sockets)
        first, second = sorted(pair)
        found = finding(
            "network.pair_cut",
            Severity.WARNING,
            sockets,
            f"Between {first} and {second} a TCP connection stands still: its oldest segment was sent again {again} "
            f"times in a row without an answer, while both hosts are up{' and reach others' if all(others) else ''}.",
            again=again,
            between=[first, second],
        )
        both = {rank for rank in of_peers if rank is not None} if len(of_peers) == len(pair) else told
        summary = found.summary.partition(": ")[2]
        yield found.model_copy(update={"hosts": [first, second], "ranks": sorted(both), "summary": summary})


def _is_unanswered(socket: Seen) -> bool:
    return socket.values.get("state") == "syn-sent" and int(socket.values.get("backoff", 0)) >= _LEAST_BACKOFF


def _unreachable(socket: Seen, peer: str, *, at_store: bool) -> Finding:
    sent = int(socket.values.get("again") or socket.values["backoff"]) + 1
    return finding(
        "startup.endpoint_unreachable",
        Severity.WARNING,
        [socket],
        f"A connection to {peer} is asked for and not answered: its first packet was sent {sent} times.",
        address=host_of(peer),
        port=_port_of(peer),
        how="timed_out",
        stage="store" if at_store else "peers",
    )


def _closed(owner: str, socket: Seen, peer: str) -> Finding:
    found = finding(
        "network.host_silent",
        Severity.WARNING,
        [socket],
        f"{owner} does not answer on port {_port_of(peer)}, which {socket.host} asks for.",
        address=host_of(peer),
        port=_port_of(peer),
        to=[socket.host],
    )
    return found.model_copy(update={"hosts": [owner], "summary": found.summary.partition(": ")[2]})


def owners_of_addresses(facts: Iterable[Seen]) -> dict[str, str]:
    """By address the one host that has an address; one that several have, such as that of a bridge, is nobody's."""
    found: dict[str, set[str]] = {}
    for host, of_host in by_host(facts).items():
        for interface in of_topic(of_host, "interface"):
            for address in interface.values.get("addresses") or []:
                if host:
                    found.setdefault(address, set()).add(host)
    return {address: hosts.pop() for address, hosts in found.items() if len(hosts) == 1}


def _port_of(address: str) -> int | None:
    port = address.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() else None
