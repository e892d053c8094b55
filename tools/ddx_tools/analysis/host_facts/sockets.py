"""Findings about TCP connections with unread bytes or without an answer: which process or host is not responding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ddx_tools.analysis.host_facts.host_fact import HostFactRow, by_host, finding, of_topic
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.grouping import gathered

_MOST = 32
_Ends = tuple[str, str]
"""A connection, as (local address, remote address)."""


def socket_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Find connections whose owner leaves bytes unread; if ranks are known, only theirs.

    If two samples show that nothing was read, or the sender's window is closed, it is a notice, but no more than that:
    a busy rank reads nothing either.
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
    """Return a test of whether a socket belongs only to processes that are not ranks.

    The test is False for sockets without a known owner, and on hosts whose ranks are unknown.
    """
    ranks = {(fact.host, str(fact.subject)) for fact in of_topic(facts, "rank_process")}
    hosts = {host for host, _ in ranks}

    def is_of_others(socket: HostFactRow) -> bool:
        pids = [str(owner["pid"]) for owner in socket.values.get("owners") or []]
        return socket.host in hosts and bool(pids) and not any((socket.host, pid) in ranks for pid in pids)

    return is_of_others


def ends(socket: HostFactRow) -> _Ends:
    """The local and remote address of a connection."""
    return plain_address(str(socket.values["local"])), plain_address(str(socket.subject))


def host_of(address: str) -> str:
    """Strip the port from `10.0.0.1:80` or `[fe80::1%eth0]:80`."""
    return plain_address(address).rpartition(":")[0].strip("[]").partition("%")[0]


def plain_address(address: str) -> str:
    """Convert an IPv4 address that IPv6 sockets show as mapped (`[::ffff:10.0.0.1]:80`) to its plain form."""
    return address.replace("[::ffff:", "").replace("]", "") if address.startswith("[::ffff:") else address


def _unread(
    seen: list[HostFactRow], other: list[HostFactRow], certain: bool, ranks: dict[tuple[str | None, str], int | None]
) -> Finding:
    last = seen[-1]
    reader, sender = _owner(seen, ranks), _owner(other, ranks)
    count = last.values["unread_bytes"]
    words = f"{reader[0] or 'A process'} has not read {count} bytes that {sender[0] or last.subject} sent"
    return finding(
        "network.unread_bytes",
        Severity.NOTICE if certain else Severity.INFO,
        [*seen, *other],
        f"{words}: it is not reading from this connection" + ("." if certain else " at this moment."),
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
    """The owner of a connection, as (words, rank, pid); of several owners (workers inherit it), the rank."""
    owners = [(one.host, owner["pid"], owner["name"]) for one in sockets for owner in one.values.get("owners", [])]
    for host, pid, _ in owners:
        rank = ranks.get((host, str(pid)))
        if rank is not None:
            return f"Rank {rank} (pid {pid})", rank, pid
    if owners:
        return f"{owners[0][2]} (pid {owners[0][1]})", None, owners[0][1]
    return None, None, None


# --- findings about connection attempts that get no answer: packets to that port of that host are dropped

_LEAST_BACKOFF = 2
"""Doublings of the first packet's timer, which starts at one second: three packets were sent in three seconds."""


def unanswered_findings(facts: list[HostFactRow]) -> Iterator[Finding]:
    """Find connections that get no answer and, if the remote host was captured, the silent port there.

    The remote host is named if others get no answer from it either, or if it has a working connection with the asking
    host. Otherwise, or if neither host gets an answer from the other, the network or the asker's firewall may be at
    fault.
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
    # A host that is down, or an address that no host has, answers neither ARP nor on another port.
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
    """The host per address; addresses that several hosts have, such as that of a bridge, are left out."""
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
