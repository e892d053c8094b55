"""Findings about TCP connections that hold bytes: who does not read from whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_MOST = 32
_Ends = tuple[str, str]
"""Local and remote address of a connection."""


def socket_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Connections with bytes that their owner does not read; where ranks are known, theirs only.

    Seen in two samples without a byte taken out, or with the sender's window shut, it is a notice: a rank that is busy
    reads nothing either.
    """
    ranks = {(fact.host, str(fact.subject)): fact.values.get("rank") for fact in of_topic(facts, "rank_process")}
    told = 0
    looks = gathered(
        ((socket.host, ends(socket)), socket)
        for socket in of_topic(facts, "tcp_socket")
        if "unread_bytes" in socket.values
    )
    for (host, (local, peer)), seen in looks.items():
        unread = [one.values["unread_bytes"] for one in seen]
        pids = [owner["pid"] for one in seen for owner in one.values["owners"]]
        own = [pid for pid in pids if (host, str(pid)) in ranks]
        if not all(unread) or (ranks and not own) or told >= _MOST:
            continue
        other = [one for (_, ends), found in looks.items() if ends == (peer, local) for one in found]
        shut = any(one.values.get("timer") == "persist" for one in other)
        still = len(seen) > 1 and unread[-1] >= unread[0]
        if len(seen) > 1 and not still:
            continue
        told += 1
        yield _unread(seen, other, shut or still, ranks)


def owned_by_others(facts: Iterable[HostFactRow]) -> Callable[[HostFactRow], bool]:
    """Says of a socket whether it is of a process that is no rank, on a host of which ranks are known."""
    ranks = {(fact.host, str(fact.subject)) for fact in of_topic(facts, "rank_process")}
    hosts = {host for host, _ in ranks}

    def is_of_others(socket: HostFactRow) -> bool:
        pids = [str(owner["pid"]) for owner in socket.values.get("owners") or []]
        return socket.host in hosts and bool(pids) and not any((socket.host, pid) in ranks for pid in pids)

    return is_of_others


def ends(socket: HostFactRow) -> _Ends:
    """Local and remote address of a connection, of which both lines were kept."""
    return plain_address(str(socket.values["local"])), plain_address(str(socket.subject))


def host_of(address: str) -> str:
    """The address of `10.0.0.1:80` or `[fe80::1%eth0]:80` without its port."""
    return plain_address(address).rpartition(":")[0].strip("[]").partition("%")[0]


def plain_address(address: str) -> str:
    """One form for an address that IPv6 sockets show as mapped: `[::ffff:10.0.0.1]:80`."""
    return address.replace("[::ffff:", "").replace("]", "") if address.startswith("[::ffff:") else address


def _unread(
    seen: list[HostFactRow], other: list[HostFactRow], certain: bool, ranks: dict[tuple[str | None, str], int | None]
) -> Finding:
    last = seen[-1]
    reader, sender = _owner(seen, ranks), _owner(other, ranks)
    count = last.values["unread_bytes"]
    words = f"{reader[0] or 'A process'} leaves {count} bytes unread that {sender[0] or last.subject} sent"
    return finding(
        "network.unread_bytes",
        Severity.NOTICE if certain else Severity.INFO,
        [*seen, *other],
        f"{words}: it does not read from this connection" + (" now." if certain else " at this moment."),
        unread_bytes=count,
        unsent_bytes=other[-1].values.get("unsent_bytes") if other else None,
        local=last.values["local"],
        peer=last.subject,
        peer_rank=sender[1],
        window_shut=any(one.values.get("timer") == "persist" for one in other) or None,
        pid=reader[2],
        ranks=[] if reader[1] is None else [reader[1]],
    )


def _owner(
    sockets: list[HostFactRow], ranks: dict[tuple[str | None, str], int | None]
) -> tuple[str | None, int | None, int | None]:
    """Who has a connection open, in words, by rank and by pid; of several (workers inherit it) the rank."""
    owners = [(one.host, owner["pid"], owner["name"]) for one in sockets for owner in one.values.get("owners", [])]
    for host, pid, _ in owners:
        rank = ranks.get((host, str(pid)))
        if rank is not None:
            return f"Rank {rank} (pid {pid})", rank, pid
    if owners:
        return f"{owners[0][2]} (pid {owners[0][1]})", None, owners[0][1]
    return None, None, None


# --- findings about connections that are asked for and not answered: packets to that port of that host are dropped

_LEAST_BACKOFF = 2
"""Doublings of the timer of the first packet, which begins with a second: three were sent, for three seconds."""


def unanswered_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Who gets no answer, and, where the address is one of a host that was looked at, whose port is silent.

    A host is named if others get no answer from it, either, or if a connection stands between it and the one that asks.
    Else the way may be broken, or the asker's own firewall; and it is if both ask each other in vain.
    """
    owners = owners_of_addresses(facts)
    others = owned_by_others(facts)
    sockets = [socket for socket in of_topic(facts, "tcp_socket") if not others(socket)]
    silent = {ends(socket): socket for socket in sockets if _is_unanswered(socket)}
    between = {(socket.host, owners.get(host_of(peer))) for (_, peer), socket in silent.items()}
    reached = {(fact.host, host_of(ends(fact)[1])) for fact in of_topic(facts, "tcp_established")}
    connected = {(host, owners.get(address)) for host, address in reached}
    masters = {(fact.host, fact.values.get("master")) for fact in of_topic(facts, "job")}
    neighbours = {(fact.host, fact.subject) for fact in of_topic(facts, "neighbour") if fact.values["answers"]}
    told: set[tuple[str | None, str]] = set()
    for (_, peer), socket in silent.items():
        if (socket.host, peer) in told:
            continue
        told.add((socket.host, peer))
        at_store = any(_port_of(peer) == _port_of(at or "") for _, at in masters)
        yield _unreachable(
            socket, peer, at_store=at_store, host_answers=(socket.host, host_of(peer)) in reached | neighbours
        )
        owner = owners.get(host_of(peer))
        ways = {(socket.host, owner), (owner, socket.host)}
        others_ask = any(of == owner and host not in (owner, socket.host) for host, of in between)
        if owner and owner != socket.host and not ways <= between and (others_ask or ways & connected):
            yield _closed(owner, socket, peer)


def _is_unanswered(socket: HostFactRow) -> bool:
    return socket.values.get("state") == "syn-sent" and int(socket.values.get("backoff", 0)) >= _LEAST_BACKOFF


def _unreachable(socket: HostFactRow, peer: str, *, at_store: bool, host_answers: bool) -> Finding:
    sent = int(socket.values.get("again") or socket.values["backoff"]) + 1
    # A host that is down, or an address that nobody has, answers neither ARP nor on another port.
    below = " The host is up: other connections to it work." if host_answers else ""
    return finding(
        "startup.endpoint_unreachable",
        Severity.WARNING,
        [socket],
        f"A connection to {peer} gets no answer: its first packet was sent {sent} times.{below}",
        address=host_of(peer),
        port=_port_of(peer),
        how="timed_out",
        stage="store" if at_store else "peers",
        host_answers=host_answers,
    )


def _closed(owner: str, socket: HostFactRow, peer: str) -> Finding:
    return finding(
        "network.host_silent",
        Severity.WARNING,
        [socket],
        f"{owner} does not answer {socket.host} on port {_port_of(peer)}.",
        address=host_of(peer),
        port=_port_of(peer),
        to=[socket.host],
        about=[owner],
        named=True,
    )


def owners_of_addresses(facts: Iterable[HostFactRow]) -> dict[str, str]:
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
