"""Reads one run of `ping`: what arrived, and which host said that a packet is too long (not shown with -q).

    PING 10.77.0.3 (10.77.0.3) 8972(9000) bytes of data.
    ping: local error: message too long, mtu=1500           this host (iputils s20150815 and later)
    From 10.77.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1400)   a router on the way
    3 packets transmitted, 0 received, 100% packet loss, time 119ms
    rtt min/avg/max/mdev = 0.064/0.085/0.423/0.077 ms

iputils 20161105 to 20240905 (ping/ping_common.c, ping/ping.c). path_text.py reads pasted texts with several `ping` runs
and their commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RESULT = re.compile(r"(?P<sent>\d{1,9}) packets transmitted, (?P<received>\d{1,9}) (?:packets )?received")
_SIZE = re.compile(r"PING \S{1,100} .{0,120}?(?P<payload>\d{1,6})(?:\(\d{1,6}\))? (?:data )?bytes")
_HERE = re.compile(r"local error: [Mm]essage too long(?:, mtu[=:] ?(?P<mtu>\d{1,6}))?|sendmsg: Message too long")
_ON_WAY = re.compile(
    r"From (?P<hop>\S{1,100}) (?:\(\S{1,60}\) )?icmp_seq=\d{1,9} "
    r"(?:Frag needed and DF set \(mtu = (?P<mtu>\d{1,6})\)|Packet too big: mtu=(?P<mtu6>\d{1,6}))"
)
_ROUND_TRIP = re.compile(
    r"(?:rtt|round-trip) min/avg/max\S{0,10} = [\d.]{1,12}/(?P<mean>[\d.]{1,12})/(?P<most>[\d.]{1,12})"
)
_UNABLE = re.compile(r"invalid option|unrecognized option|[Uu]sage: ping|BusyBox|cannot flood|Operation not permitted")
_UNREACHABLE = re.compile(
    r"(?:Destination )?(?:Host|Net|Port) (?:Unreachable|Prohibited)|Packet filtered|Network is unreachable", re.I
)
_MOST_CHARS = 64 << 10


@dataclass(frozen=True)
class PingRun:
    """The result of one `ping` run."""

    outcome: str
    """all | some | silent (none arrived, without an error) | too_long_here | too_long_on_way | unreachable | unable
    (this ping does not support the options)"""
    payload_bytes: int | None
    sent: int
    received: int
    mtu_told: int | None
    """The MTU that this host or the router reported."""
    hop: str | None
    """The router that reported an error."""
    mean_ms: float | None
    quote: str
    """The line that shows the outcome."""


def read_ping(data: bytes) -> PingRun:
    """Read standard output and error of one `ping` run; anything else is `unable`."""
    text = data[:_MOST_CHARS].decode("utf-8", "replace")
    result, size = _RESULT.search(text), _SIZE.search(text)
    sent, received = (int(result["sent"]), int(result["received"])) if result else (0, 0)
    here, on_way = _HERE.search(text), _ON_WAY.search(text)
    told = on_way or here
    mtu = next(
        (int(value) for name, value in (told.groupdict() if told else {}).items() if name[:3] == "mtu" and value), None
    )
    if received:
        outcome, said = ("all" if received >= sent else "some"), result
    elif told:
        outcome, said = ("too_long_on_way" if on_way else "too_long_here"), told
    elif unreachable := _UNREACHABLE.search(text):
        outcome, said = "unreachable", unreachable
    elif sent:
        outcome, said = "silent", result
    else:
        outcome, said = "unable", _UNABLE.search(text)
    trip = _ROUND_TRIP.search(text)
    return PingRun(
        outcome=outcome,
        payload_bytes=int(size["payload"]) if size else None,
        sent=sent,
        received=received,
        mtu_told=mtu,
        hop=on_way["hop"].rstrip(":") if on_way else None,
        mean_ms=_number(trip["mean"]) if trip else None,
        quote=_line(text, said.start() if said else 0),
    )


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].split("\n", 1)[0].strip()[:300]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
