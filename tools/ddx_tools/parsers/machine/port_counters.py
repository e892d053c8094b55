"""Reads network port counters: perfquery, files of /sys/class/infiniband with their values, `ethtool -S`, `ip -s link`.

    # Port counters: Lid 12 port 1 (CapMask: 0x5A00)
    SymbolErrorCounter:..............0

Only nonzero error counters are kept, with the number of counters read. Topics: `port_errors`, and `traffic`, the bytes
that a port carried (PortXmitData and PortRcvData count units of four bytes). Sources: infiniband-diags 2.x (perfquery),
Documentation/ABI/stable/sysfs-class-infiniband, mlx5 counters of ethtool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.parsers.machine.host_text import HostFact, TextLine, integer

NEEDLES = (
    "ounters: Lid", "# Port ", "counters/", "NIC statistics:", "out_of_sequence", "packet_seq_err", "adp_retrans",
    "local_ack_timeout_err",
)  # fmt: skip

_PERFQUERY = re.compile(r"\s*(?:# )?Port (?:extended )?counters: (?:Lid (?P<lid>\d{1,6}) port (?P<port>\d{1,3}))?")
_DOTTED = re.compile(r"\s*(?P<name>[A-Za-z]\w{2,60}):\.{2,60}(?P<value>\d{1,20})\s*$")
_SYSFS = re.compile(
    r"\s*/sys/class/infiniband/(?P<device>[\w.-]{1,60})/ports/(?P<port>\d{1,3})/(?:hw_)?counters/"
    r"(?P<name>\w{1,60})\s*[: ]\s*(?P<value>\d{1,20})\s*$"
)
_RDMA_STATISTIC = re.compile(r"\s*link (?P<device>[\w.-]{1,60})/(?P<port>\d{1,3}) (?=\w{1,60} \d{1,20}\b)")
_PAIR = re.compile(r"(?P<name>[a-z]\w{2,60}) (?P<value>\d{1,20})(?=\s|$)")
_BARE = re.compile(
    r"\s*(?:\S{0,200}hw_counters/)?(?P<name>out_of_(?:sequence|buffer)|packet_seq_err|local_ack_timeout_err"
    r"|rnr_nak_retry_err|roce_adp_retrans(?:_to)?|implied_nak_seq_err|duplicate_request|np_cnp_sent|rp_cnp_handled"
    r"|np_ecn_marked_roce_packets|r[xt]_\w{0,30}(?:discards|dropped)\w{0,12})"
    r"\s*[:=]?\s*(?P<value>\d{1,20})(?:\s+(?:->\s*)?(?P<later>\d{1,20}))?\s*$"
)
"""A counter of /sys/class/infiniband/DEVICE/ports/N/hw_counters without its path; often pasted before and after a
test."""
_NIC_HEADING = re.compile(r"\s*NIC statistics:")
_NIC_COUNTER = re.compile(r"\s+(?P<name>[A-Za-z][\w.\[\] -]{1,80}?):\s*(?P<value>\d{1,20})\s*$")
_ETHTOOL = re.compile(r"(?:sudo )?ethtool (?:-S|--statistics) (?P<device>[\w.@-]{1,40})")

_ERRORS = re.compile(
    r"symbol_?err|linkerrorrecovery|link_error_recovery|linkdowned|link_downed|link_down_events|rcvremphyserrors"
    r"|port_?rcv_?err|port_?rcv_?rem|xmit_?discards|xmit_?constraint|rcv_?constraint|local_?link_?integrity"
    r"|excessive_?buffer|buf_?overrun|retry_exc|retry_exceeded|rnr_retry|out_of_sequence|packet_seq_err"
    r"|local_ack_timeout|rx_crc_err|rx_discards|tx_discards|rx_out_of_buffer|rx_err|tx_err|rx_symbol|pcs_symbol|rx_corrected_bits|rx_over|rx_missed"
    r"|adp_retrans",
    re.I,
)
_CARRIED = {"portxmitdata": "sent_bytes", "portrcvdata": "received_bytes"}
_BYTES_PER_UNIT = 4
_NORMAL = re.compile(r"corrected_bits|pcs_symbol|_per_lane", re.I)
"""Counters that grow on a healthy link with forward error correction."""


@dataclass
class _Counters:
    line: TextLine
    device: str | None
    port: int | None
    looked_at: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    first: TextLine | None = None
    carried: dict[str, int] = field(default_factory=dict)

    def add(self, line: TextLine, name: str, value: int | None) -> None:
        if value is not None and (carried := _CARRIED.get(name.replace("_", "").lower())):
            self.carried[carried] = value * _BYTES_PER_UNIT
        if value is None or not _ERRORS.search(name) or _NORMAL.search(name):
            return
        self.looked_at += 1
        if value and len(self.counters) < 64:
            self.counters[name] = value
            self.first = self.first or line

    def fact(self) -> Iterator[HostFact]:
        if self.looked_at:
            values: dict[str, Any] = {"port": self.port, "looked_at": self.looked_at, "counters": self.counters}
            if self.first:
                values["lines"] = {"counters": [self.first.number, self.first.text.strip()]}
            yield HostFact("port_errors", self.device, self.line, values)
        if len(self.carried) == len(_CARRIED):
            yield HostFact("traffic", self.device, self.line, {"over": "rdma", "port": self.port, **self.carried})


class _Bare:
    """Counters of an unnamed port: one reading, or two, side by side or one after the other."""

    def __init__(self) -> None:
        self.readings: list[_Counters] = []
        self.names: list[set[str]] = []

    def add(self, line: TextLine, found: re.Match[str]) -> None:
        values = [integer(found["value"])] + ([integer(found["later"])] if found["later"] else [])
        first = next((n for n, names in enumerate(self.names) if found["name"] not in names), len(self.names))
        for number, value in enumerate(values, first):
            if number == len(self.names):
                self.names.append(set())
                self.readings.append(_Counters(line, None, None))
            self.names[number].add(found["name"])
            self.readings[number].add(line, found["name"], value)

    def facts(self) -> Iterator[HostFact]:
        for reading in self.readings[:2] if len(self.readings) <= 2 else []:
            yield from reading.fact()


def read_port_counters(lines: Sequence[TextLine]) -> Iterator[HostFact]:
    """Yield one fact for each reading of a port's counters, in order."""
    block: _Counters | None = None
    bare = _Bare()
    sysfs: dict[tuple[str | None, str, str], _Counters] = {}
    for line in lines:
        if found := _PERFQUERY.match(line.text):
            yield from block.fact() if block else ()
            block = _Counters(line, f"lid {found['lid']}" if found["lid"] else None, integer(found["port"]))
        elif _NIC_HEADING.match(line.text):
            yield from block.fact() if block else ()
            command = _ETHTOOL.match(line.command or "")
            block = _Counters(line, command["device"] if command else None, None)
        elif found := _SYSFS.match(line.text):
            key = (line.host, found["device"], found["port"])
            if key not in sysfs:
                sysfs[key] = _Counters(line, found["device"], integer(found["port"]))
            sysfs[key].add(line, found["name"], integer(found["value"]))
        elif block and (found := _DOTTED.match(line.text) or _NIC_COUNTER.match(line.text)):
            block.add(line, found["name"], integer(found["value"]))
        elif found := _RDMA_STATISTIC.match(line.text):
            statistic = _Counters(line, found["device"], integer(found["port"]))
            for pair in _PAIR.finditer(line.text, found.end()):
                statistic.add(line, pair["name"], integer(pair["value"]))
            yield from statistic.fact()
        elif found := _BARE.match(line.text):
            bare.add(line, found)
        elif block and not line.text.strip():
            yield from block.fact()
            block = None
    yield from bare.facts()
    yield from block.fact() if block else ()
    for counters in sysfs.values():
        yield from counters.fact()
