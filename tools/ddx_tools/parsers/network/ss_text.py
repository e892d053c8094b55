"""Reads TCP connections from `ss -tinp` (iproute2 4.9 to 6.x): two lines each, or one with -O.

    ESTAB 0      33624      10.77.0.1:53080    10.77.0.2:6000 users:(("python3",pid=6607,fd=3)) timer:(persist,296ms,1)
         cubic rto:212 backoff:2 rtt:10.4/18.2 mss:1448 pmtu:1500 cwnd:100 unacked:1 retrans:0/1 notsent:33624

Topic: `tcp_socket`, one for each connection that holds unread or unacknowledged bytes, or that retransmits. With `-p`
and sufficient rights, `owners` are the processes that have it open. Also `tcp_established`, one for each pair of
addresses with an established connection: the bytes that all of these connections hold now, and, with `-i`, the bytes
that they carried since they were established (TCP_INFO in tcp(7); iproute2 6.1 prints no zeros).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = ("ESTAB ", "SYN-SENT ", "CLOSE-WAIT ", "FIN-WAIT", "Recv-Q", "retrans:", "backoff:")

_ADDRESS = r"(?:\d{1,3}(?:\.\d{1,3}){3}(?:%[\w.-]{1,20})?|\[[0-9a-fA-F:%.\w-]{2,60}\]):\d{1,5}"
_SOCKET = re.compile(
    rf"\s*(?:tcp\s+)?(?:(?P<state>[A-Z][A-Z0-9-]{{2,12}})\s+)?(?P<unread>\d{{1,12}})\s+(?P<unsent>\d{{1,12}})"
    rf"\s+(?P<local>{_ADDRESS})\s+(?P<peer>{_ADDRESS})"
)
_OWNER = re.compile(r'\("(?P<name>[^"]{1,40})",pid=(?P<pid>\d{1,10}),fd=\d{1,10}\)')
_TIMER = re.compile(r"timer:\((?P<kind>on|persist|keepalive|timewait|unknown),")
_RETRANS = re.compile(r"\bretrans:\d{1,9}/(?P<total>\d{1,12})")
_INFO = re.compile(
    r"\b(?P<name>backoff|mss|pmtu|cwnd|rto|unacked|notsent|lost|lastrcv|lastsnd|lastack|data_segs_out|dsack_dups"
    r"|bytes_(?:sent|retrans|acked|received)):(?P<value>\d{1,19})\b"
)
_MOST_OWNERS = 8
_MOST_PAIRS = 1_024
_COUNTERS_CHARS = 120


def read_sockets(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield facts from the output of `ss -tinp`.

    First each TCP connection with unread or unacknowledged bytes, or with retransmissions. Then one fact for each pair
    of addresses with established connections, with the sum of their bytes.
    """
    pairs: dict[tuple[str | None, str, str], HostFact] = {}
    for socket in _connections(lines):
        yield from _waiting(socket)
        if socket.values.get("state") == "estab":
            _add_to_pair(pairs, socket)
    yield from pairs.values()


def _connections(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    socket: HostFact | None = None
    for line in lines:
        if found := _SOCKET.match(line.text):
            yield from [socket] if socket else []
            socket = HostFact("tcp_socket", found["peer"], line, _values(found))
        elif not line.text[:1].isspace() and " " in line.text.strip():
            yield from [socket] if socket else []
            socket = None
        elif socket is None and (_RETRANS.search(line.text) or " backoff:" in line.text):
            # Only the second line was kept.
            socket = HostFact("tcp_socket", None, line, {})
        if socket:
            _more(socket.values, line.text, line.number)
    yield from [socket] if socket else []


def _add_to_pair(pairs: dict[tuple[str | None, str, str], HostFact], socket: HostFact) -> None:
    """Add a connection to the sums of its pair of addresses."""
    values, peer = socket.values, str(socket.subject)
    key = socket.line.host, values["local"].rpartition(":")[0], peer.rpartition(":")[0]
    if key not in pairs:
        if len(pairs) == _MOST_PAIRS:
            return
        pairs[key] = HostFact("tcp_established", peer, socket.line, {"local": values["local"], "sockets": 0})
    sums = pairs[key].values
    counted = {name: values[name] for name in ("unread_bytes", "unsent_bytes")}
    if "mss" in values:
        sent, acked = (values.get(f"bytes_{name}", 0) for name in ("sent", "acked"))
        # Before iproute2 5, only the acknowledged bytes are printed.
        counted["sent_bytes"] = max(sent - values.get("bytes_retrans", 0), 0) if sent else acked
        counted |= {"acked_bytes": acked, "received_bytes": values.get("bytes_received", 0)}
    for name, count in (counted | {"sockets": 1}).items():
        sums[name] = sums.get(name, 0) + count


def _values(found: re.Match[str]) -> dict[str, Any]:
    text = found.string[found.end() : found.end() + 2_000]
    owners = list(_OWNER.finditer(text))[:_MOST_OWNERS]
    values: dict[str, Any] = {
        "local": found["local"],
        "unread_bytes": int(found["unread"]),
        "unsent_bytes": int(found["unsent"]),
        "owners": [{"pid": int(owner["pid"]), "name": owner["name"]} for owner in owners],
    }
    return values | ({"state": found["state"].lower()} if found["state"] else {})


def _more(values: dict[str, Any], text: str, number: int) -> None:
    if timer := _TIMER.search(text):
        values["timer"] = timer["kind"]
    if again := _RETRANS.search(text):
        values["again"] = integer(again["total"])
        values["lines"] = {"retrans": [number, text[again.start() :][:_COUNTERS_CHARS].strip()]}
    values.update({item["name"]: int(item["value"]) for item in _INFO.finditer(text)})


def _waiting(socket: HostFact) -> Iterator[HostFact]:
    values = socket.values
    told = values.get("again") or values.get("backoff")
    if values.get("unread_bytes") or values.get("unsent_bytes") or (told and {"mss", "rto"} & set(values)):
        yield socket
