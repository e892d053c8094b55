"""What passes between two hosts: `ping` (iputils, BSD), `ss -ti` (iproute2), counters of TCP (`nstat`, `netstat -s`).

    PING 10.0.0.2 (10.0.0.2) 8972(9000) bytes of data.
    3 packets transmitted, 0 received, 100% packet loss, time 2036ms
         cubic rto:54272 backoff:8 rtt:1.2/0.4 mss:8949 pmtu:9001 cwnd:1 retrans:1/23 unacked:1
    TcpRetransSegs                  41206              0.0
        41206 segments retransmitted

Topics: `ping`, one for each run; `tcp_socket`, one for each socket that sends something again; `tcp_counters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.formats.host_text import HostFact, TextLine, integer

NEEDLES = ("packets transmitted", "retrans:", "backoff:", "TcpRetransSegs", "segments retransmit")

_COMMAND = re.compile(r"\s*(?:sudo )?ping6? (?P<words>[^|;&]{1,300})")
_HEADING = re.compile(r"\s*PING (?P<target>\S{1,100}) .{0,120}?(?P<size>\d{1,6})(?:\(\d{1,6}\))? (?:data )?bytes")
_RESULT = re.compile(r"\s*(?P<sent>\d{1,9}) packets transmitted, (?P<received>\d{1,9}) (?:packets )?received")
_TOO_LONG = re.compile(r"[Mm]essage too long(?:, mtu=(?P<mtu>\d{1,6}))?|Frag(?:mentation)? needed(?: and DF set)?")
_DF = re.compile(r"(?:^| )(?:-M (?:do|probe)|-D)(?= |$)")
_SIZE = re.compile(r"(?:^| )-s ?(?P<size>\d{1,6})(?= |$)")
_DEFAULT_SIZE = 56
"""Bytes of data of a ping that is not told any."""

_ADDRESS = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:%.\w]{2,60}\]):\d{1,5}"
_SOCKET = re.compile(
    rf"\s*(?:tcp\s+)?[A-Z][A-Z0-9-]{{2,12}}\s+\d{{1,12}}\s+\d{{1,12}}\s+{_ADDRESS}\s+(?P<peer>{_ADDRESS})"
)
_RETRANS = re.compile(r"\bretrans:\d{1,9}/(?P<total>\d{1,12})")
_INFO = re.compile(r"\b(?P<name>backoff|mss|pmtu|cwnd|rto|unacked|lost):(?P<value>\d{1,9})\b")

_NSTAT = re.compile(r"\s*Tcp(?P<name>OutSegs|RetransSegs)\s+(?P<value>\d{1,19})(?:\s+[\d.]{1,20})?\s*$")
_NETSTAT = re.compile(r"\s*(?P<value>\d{1,19}) segments (?P<name>sen[dt] out|retransmitt?ed)\s*$")
_NAMES = {"OutSegs": "sent", "RetransSegs": "again", "sent out": "sent", "send out": "sent"}


def read_paths(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Pings, sockets that send again, and how much TCP sent again, in order."""
    yield from _pings(lines)
    yield from _sockets(lines)
    yield from _counters(lines)


def _pings(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    words = command = ""
    heading: re.Match[str] | None = None
    refused = False
    for line in lines:
        # A command that a prompt names, or one that stands alone on its line.
        asked = (line.command or "") if line.command is not None else line.text
        if (started := _COMMAND.match(asked)) and asked != command:
            words, command, heading, refused = started["words"].strip(), asked, None, False
        if found := _HEADING.match(line.text):
            heading, refused = found, False
        elif _TOO_LONG.search(line.text):
            refused = True
        elif found := _RESULT.match(line.text):
            values = _ping(words, heading)
            if values:
                target = values.pop("target")
                values |= {"sent": int(found["sent"]), "received": int(found["received"]), "refused": refused}
                yield HostFact("ping", target, line, values)
            words, command, heading, refused = "", "", None, False


def _ping(words: str, heading: re.Match[str] | None) -> dict[str, Any]:
    """What was sent, and to whom; nothing if neither the command nor the heading is there.

    `whole`: it must not be cut on the way; None where the command is not there to say it.
    """
    plain = re.sub(r"(?<!\S)-[A-Za-z]+(?: +(?:do|dont|want|probe|[\d.]+(?=\s)))?", " ", f"{words} ").split()
    target = heading["target"] if heading else plain[-1] if plain else None
    if target is None:
        return {}
    size = _SIZE.search(words)
    told = heading["size"] if heading else size["size"] if size else str(_DEFAULT_SIZE)
    return {"target": target.rstrip(":"), "size_bytes": int(told), "whole": bool(_DF.search(words)) if words else None}


def _sockets(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    peer: str | None = None
    for line in lines:
        if found := _SOCKET.match(line.text):
            peer = found["peer"]
        again = _RETRANS.search(line.text)
        if again or " backoff:" in line.text:
            values: dict[str, Any] = {item["name"]: int(item["value"]) for item in _INFO.finditer(line.text)}
            if again:
                values["again"] = int(again["total"])
            if "mss" in values or "rto" in values:
                yield HostFact("tcp_socket", peer, line, values)
            peer = None


def _counters(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact for each reading: a name that comes again begins the next one."""
    now: HostFact | None = None
    for line in lines:
        found = _NSTAT.match(line.text) or _NETSTAT.match(line.text)
        if not found:
            continue
        name = _NAMES.get(found["name"], "again")
        if now is None or name in now.values or now.line.host != line.host:
            yield from (now,) if now else ()
            now = HostFact("tcp_counters", None, line, {})
        now.values[name] = integer(found["value"])
    if now:
        yield now
