"""Reads which hosts on the local network answered recently: /proc/net/arp of any Linux, and `ip neigh` (iproute2 4.9 to
6.x).

    10.20.30.11      0x1         0x2         72:a4:31:0e:5d:10     *        eth0
    10.20.30.11 dev eth0 lladdr 72:a4:31:0e:5d:10 REACHABLE

Topic: `neighbour`, one for each address of another host, with whether it answered at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddx_tools.parsers.machine.host_text import HostFact, TextLine

NEEDLES = ("HW address", " lladdr ")

_ADDRESS = r"(?P<address>\d{1,3}(?:\.\d{1,3}){3})"
_ARP = re.compile(rf"{_ADDRESS}\s+0x[0-9a-f]{{1,4}}\s+0x(?P<flags>[0-9a-f]{{1,4}})\s+[0-9a-f:]{{17}}\s")
_NEIGH = re.compile(rf"{_ADDRESS} dev [\w.-]{{1,40}} .{{0,80}}?\b(?P<state>[A-Z]{{5,12}})\s*$")
_COMPLETE = 0x2
_UNANSWERED = ("INCOMPLETE", "FAILED")


def read_neighbours(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield a `neighbour` fact for each address in an ARP or neighbour table, in line order.

    Its value `answers` is whether that host on the local network answered the address query at all.
    """
    for line in lines:
        if found := _ARP.match(line.text):
            yield HostFact("neighbour", found["address"], line, {"answers": bool(int(found["flags"], 16) & _COMPLETE)})
        elif found := _NEIGH.match(line.text):
            yield HostFact("neighbour", found["address"], line, {"answers": found["state"] not in _UNANSWERED})
