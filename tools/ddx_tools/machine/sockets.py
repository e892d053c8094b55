"""Findings about TCP connections that hold bytes: who does not read from whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from ddx_tools.machine.seen import Seen, finding, of_topic
from ddx_tools.model import Finding, Severity

_MOST = 32
_Ends = tuple[str, str]
"""Local and remote address of a connection."""


def socket_findings(facts: list[Seen]) -> Iterator[Finding]:
    """Connections with bytes that their owner does not read; where ranks are known, theirs only.

    Seen in two looks without a byte taken out, or with the sender's window shut, it is a notice: a rank that is busy
    reads nothing either.
    """
    ranks = {(fact.host, str(fact.subject)): fact.values.get("rank") for fact in of_topic(facts, "rank_process")}
    told = 0
    looks: dict[tuple[str | None, _Ends], list[Seen]] = defaultdict(list)
    for socket in of_topic(facts, "tcp_socket"):
        if "unread_bytes" in socket.values:
            looks[socket.host, ends(socket)].append(socket)
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


def owned_by_others(facts: Iterable[Seen]) -> Callable[[Seen], bool]:
    """Says of a socket whether it is of a process that is no rank, on a host of which ranks are known."""
    ranks = {(fact.host, str(fact.subject)) for fact in of_topic(facts, "rank_process")}
    hosts = {host for host, _ in ranks}

    def is_of_others(socket: Seen) -> bool:
        pids = [str(owner["pid"]) for owner in socket.values.get("owners") or []]
        return socket.host in hosts and bool(pids) and not any((socket.host, pid) in ranks for pid in pids)

    return is_of_others


def ends(socket: Seen) -> _Ends:
    """Local and remote address of a connection, of which both lines were kept."""
    return plain_address(str(socket.values["local"])), plain_address(str(socket.subject))


def host_of(address: str) -> str:
    """The address of `10.0.0.1:80` or `[fe80::1%eth0]:80` without its port."""
    return plain_address(address).rpartition(":")[0].strip("[]").partition("%")[0]


def plain_address(address: str) -> str:
    """One form for an address that IPv6 sockets show as mapped: `[::ffff:10.0.0.1]:80`."""
    return address.replace("[::ffff:", "").replace("]", "") if address.startswith("[::ffff:") else address


def _unread(
    seen: list[Seen], other: list[Seen], certain: bool, ranks: dict[tuple[str | None, str], int | None]
) -> Finding:
    last = seen[-1]
    reader, sender = _owner(seen, ranks), _owner(other, ranks)
    count = last.values["unread_bytes"]
    words = f"{reader[0] or 'A process'} leaves {count} bytes unread that {sender[0] or last.subject} sent"
    found = finding(
        "network.unread_bytes",
        Severity.NOTICE if certain else Severity.INFO,
        [*seen, *other],
        f"{words}: it does not receive on this connection" + (" now." if certain else " at this moment."),
        unread_bytes=count,
        unsent_bytes=other[-1].values.get("unsent_bytes") if other else None,
        local=last.values["local"],
        peer=last.subject,
        peer_rank=sender[1],
        window_shut=any(one.values.get("timer") == "persist" for one in other) or None,
        pid=reader[2],
    )
    return found.model_copy(update={"ranks": [] if reader[1] is None else [reader[1]]})


def _owner(
    sockets: list[Seen], ranks: dict[tuple[str | None, str], int | None]
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
