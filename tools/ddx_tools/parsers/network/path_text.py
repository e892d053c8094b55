"""Reads what passes between two hosts: `ping` (iputils, BSD), TCP counters (`nstat`, `netstat -s`).

    PING 10.0.0.2 (10.0.0.2) 8972(9000) bytes of data.
    3 packets transmitted, 0 received, 100% packet loss, time 2036ms
    TcpRetransSegs                  41206              0.0
        41206 segments retransmitted

Topics: `ping`, one for each run; `tcp_counters`, one for each reading.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = ("packets transmitted", "TcpRetransSegs", "segments retransmit")

_COMMAND = re.compile(r"\s*(?:sudo )?ping6? (?P<words>[^|;&]{1,300})")
_HEADING = re.compile(r"\s*PING (?P<target>\S{1,100}) .{0,120}?(?P<size>\d{1,6})(?:\(\d{1,6}\))? (?:data )?bytes")
_RESULT = re.compile(r"\s*(?P<sent>\d{1,9}) packets transmitted, (?P<received>\d{1,9}) (?:packets )?received")
_TOO_LONG = re.compile(r"[Mm]essage too long(?:, mtu=(?P<mtu>\d{1,6}))?|Frag(?:mentation)? needed(?: and DF set)?")
_DF = re.compile(r"(?:^| )(?:-M (?:do|probe)|-D)(?= |$)")
_SIZE = re.compile(r"(?:^| )-s ?(?P<size>\d{1,6})(?= |$)")
_DEFAULT_SIZE = 56
"""The bytes of data in a ping without a size option."""

_NSTAT = re.compile(r"\s*Tcp(?P<name>OutSegs|RetransSegs)\s+(?P<value>\d{1,19})(?:\s+[\d.]{1,20})?\s*$")
_NETSTAT = re.compile(r"\s*(?P<value>\d{1,19}) segments (?P<name>sen[dt] out|retransmitt?ed)\s*$")
_NAMES = {"OutSegs": "sent", "RetransSegs": "again", "sent out": "sent", "send out": "sent"}


def read_paths(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield pings, and TCP retransmission counters, in order."""
    yield from _pings(lines)
    yield from _counters(lines)


def _pings(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    words = command = ""
    heading: re.Match[str] | None = None
    refused = False
    for line in lines:
        # A command after a prompt, or by itself on its line.
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
    """The ping's size and target; empty if there is neither a command nor a heading.

    `whole`: whether it must not be fragmented; None without the command.
    """
    plain = re.sub(r"(?<!\S)-[A-Za-z]+(?: +(?:do|dont|want|probe|[\d.]+(?=\s)))?", " ", f"{words} ").split()
    target = heading["target"] if heading else plain[-1] if plain else None
    if target is None:
        return {}
    size = _SIZE.search(words)
    told = heading["size"] if heading else size["size"] if size else str(_DEFAULT_SIZE)
    return {"target": target.rstrip(":"), "size_bytes": int(told), "whole": bool(_DF.search(words)) if words else None}


def _counters(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """One fact for each reading: a repeated name begins the next one."""
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


# --- /proc/net/snmp and /proc/net/route of Linux: TCP retransmissions, and the default route
#     Tcp: RtoAlgorithm RtoMin … OutSegs RetransSegs InErrs OutRsts
#     Tcp: 1 200 … 1198777 1012 0 77
#     Iface  Destination  Gateway   Flags  RefCnt  Use  Metric  Mask …
#     eth0   00000000     010200C0  0003   0       0    0       00000000
# Topics: `tcp_counters`, as from nstat; `route`, one for each default route. Source: proc(5), net/ipv4/fib_trie.c.

COUNTER_NEEDLES = ("Tcp: ", "Iface\tDestination")

_SNMP = re.compile(r"Tcp: (?P<cells>[\w -]{5,400})$")
_ROUTE = re.compile(
    r"(?P<device>[\w.@-]{1,40})\s+0{8}\s+(?P<gateway>[0-9A-F]{8})\s+[0-9A-F]{4}\s+\d{1,9}\s+\d{1,9}\s+\d{1,9}\s+0{8}\s"
)
_SNMP_NAMES = {"OutSegs": "sent", "RetransSegs": "again"}


def read_net_counters(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield TCP counters and default routes, in order."""
    names: list[str] = []
    for line in lines:
        if found := _SNMP.match(line.text):
            cells = found["cells"].split()
            if not cells[0].isdigit():
                names = cells
                continue
            pairs = [
                (_SNMP_NAMES[name], integer(cell))
                for name, cell in zip(names, cells, strict=False)
                if name in _SNMP_NAMES
            ]
            values = {name: count for name, count in pairs if count is not None}
            if len(values) == len(_SNMP_NAMES):
                yield HostFact("tcp_counters", None, line, values)
        elif found := _ROUTE.match(line.text):
            gateway = ipaddress.IPv4Address(int(found["gateway"], 16).to_bytes(4, "little"))
            yield HostFact("route", found["device"], line, {"gateway": str(gateway)})
