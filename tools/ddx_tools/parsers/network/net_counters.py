"""/proc/net/snmp and /proc/net/route of Linux: how much TCP sent again, and the default route.

    Tcp: RtoAlgorithm RtoMin … OutSegs RetransSegs InErrs OutRsts
    Tcp: 1 200 … 1198777 1012 0 77
    Iface  Destination  Gateway   Flags  RefCnt  Use  Metric  Mask …
    eth0   00000000     010200C0  0003   0       0    0       00000000

Topics: `tcp_counters`, as of nstat; `route`, one for each default route. Source: proc(5), net/ipv4/fib_trie.c.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = ("Tcp: ", "Iface\tDestination")

_TCP = re.compile(r"Tcp: (?P<cells>[\w -]{5,400})$")
_ROUTE = re.compile(
    r"(?P<device>[\w.@-]{1,40})\s+0{8}\s+(?P<gateway>[0-9A-F]{8})\s+[0-9A-F]{4}\s+\d{1,9}\s+\d{1,9}\s+\d{1,9}\s+0{8}\s"
)
_NAMES = {"OutSegs": "sent", "RetransSegs": "again"}


def read_net_counters(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Counters of TCP and default routes, in order."""
    names: list[str] = []
    for line in lines:
        if found := _TCP.match(line.text):
            cells = found["cells"].split()
            if not cells[0].isdigit():
                names = cells
                continue
            pairs = [(_NAMES[name], integer(cell)) for name, cell in zip(names, cells, strict=False) if name in _NAMES]
            values = {name: count for name, count in pairs if count is not None}
            if len(values) == len(_NAMES):
                yield HostFact("tcp_counters", None, line, values)
        elif found := _ROUTE.match(line.text):
            gateway = ipaddress.IPv4Address(int(found["gateway"], 16).to_bytes(4, "little"))
            yield HostFact("route", found["device"], line, {"gateway": str(gateway)})
