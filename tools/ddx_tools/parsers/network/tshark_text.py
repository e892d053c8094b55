"""Reads the TCP packets of a capture from `tshark -T fields`, grouped by connection.

tcpdump never reports retransmissions, because it keeps no state. Wireshark's TCP analysis does
(epan/dissectors/packet-tcp.c, `tcp.analysis.*`; 3.6 to 4.4). Flags are requested as a number, because 4.2 prints single
flags as True, whereas 4.0 prints 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FIELDS = (
    "frame.number", "frame.time_relative", "tcp.stream",
    "ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport",
    "tcp.flags", "tcp.len",
    "tcp.analysis.retransmission", "tcp.analysis.duplicate_ack", "tcp.analysis.zero_window",
)  # fmt: skip
"""The fields requested for every packet, in this order, separated by tabs."""

_SYN, _RST, _ACK = 0x02, 0x04, 0x10
_MOST_FLOWS = 50_000
_MOST_LINES = 4_000_000
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}")


@dataclass
class Side:
    """The packets that one end of a connection sent."""

    packets: int = 0
    with_data: int = 0
    again: int = 0
    """The number of retransmitted packets."""
    duplicate_acks: int = 0
    """The number of repeated acknowledgements of the same byte: an earlier packet was missing at this end."""
    zero_windows: int = 0
    """The number of times it told its peer to stop sending, because it does not read."""
    resets: int = 0
    syns: int = 0


@dataclass
class Flow:
    """One TCP connection in a capture."""

    stream: int
    client: str
    """address:port of the end that opened the connection, or that is seen first"""
    server: str
    line: int
    """The line of its first packet, from 1."""
    first_s: float
    last_s: float
    """The time of its last packet, in seconds since the first packet of the capture."""
    of_client: Side
    of_server: Side
    answered: bool = False
    """Whether the server sent more than a reset."""

    @property
    def never_answered(self) -> bool:
        """Whether the client tried more than once and received nothing."""
        return self.of_client.syns > 1 and not self.of_server.packets

    @property
    def refused(self) -> bool:
        """Whether the answer to the client's first packet was a reset."""
        return bool(self.of_client.syns and self.of_server.resets) and not self.answered


def read_flows(data: bytes) -> list[Flow]:
    """Return the TCP connections in the output of `tshark -T fields`, ordered by their first packet.

    Lines that do not consist of the requested `FIELDS` are skipped.
    """
    flows: dict[int, Flow] = {}
    for number, cells in _rows(data):
        packet = _packet(cells)
        if packet is None:
            continue
        stream, source, target, flags, time_s = packet
        flow = flows.get(stream)
        if flow is None:
            if len(flows) >= _MOST_FLOWS:
                continue
            # In a capture that begins mid-connection, only an answer to a SYN shows which end is the client.
            ends = (target, source) if flags & (_SYN | _ACK) == _SYN | _ACK else (source, target)
            flow = flows[stream] = Flow(stream, *ends, number, time_s, time_s, Side(), Side())
        _add(flow, flow.of_client if source == flow.client else flow.of_server, flags, time_s, cells)
    return list(flows.values())


def _rows(data: bytes) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(data.split(b"\n", _MOST_LINES)[:_MOST_LINES], 1):
        cells = line.rstrip(b"\r").decode("ascii", "replace").split("\t")
        if len(cells) == len(FIELDS):
            yield number, cells


def _packet(cells: list[str]) -> tuple[int, str, str, int, float] | None:
    """(stream, source, target, flags, seconds); None if a cell is invalid."""
    try:
        stream, flags, time_s = int(cells[2]), int(cells[9], 16), float(cells[1])
        source, target = (_end(cells[at] or cells[at + 1], cells[at + 2]) for at in (3, 6))
    except ValueError:
        return None
    return (stream, source, target, flags, time_s) if 0 <= time_s < 1e9 and 0 <= stream < 1 << 40 else None


def _end(address: str, port: str) -> str:
    if not _ADDRESS.fullmatch(address) or not 0 <= int(port) <= 0xFFFF:
        raise ValueError(address)
    return f"[{address}]:{int(port)}" if ":" in address else f"{address}:{int(port)}"


def _add(flow: Flow, side: Side, flags: int, time_s: float, cells: list[str]) -> None:
    side.packets += 1
    side.with_data += cells[10] not in ("", "0")
    side.again += bool(cells[11])
    side.duplicate_acks += bool(cells[12])
    # A reset also has a window of zero.
    side.zero_windows += bool(cells[13]) and not flags & _RST
    side.resets += bool(flags & _RST)
    side.syns += flags & (_SYN | _ACK) == _SYN
    flow.answered |= side is flow.of_server and not flags & _RST
    flow.last_s = max(flow.last_s, time_s)
