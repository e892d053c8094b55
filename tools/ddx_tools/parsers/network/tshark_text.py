"""TCP packets of a capture as `tshark -T fields` lists them, put together by connection.

tcpdump never says that a packet was sent again: it keeps no state. Wireshark's TCP analysis does
(epan/dissectors/packet-tcp.c, `tcp.analysis.*`; 3.6 to 4.4). Flags are asked for as a number, since 4.2 prints the
single ones as True where 4.0 prints 1.
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
"""What is asked of every packet, in this order, with tabs between."""

_SYN, _RST, _ACK = 0x02, 0x04, 0x10
_MOST_FLOWS = 50_000
_MOST_LINES = 4_000_000
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}")


@dataclass
class Side:
    """What one end of a connection sent."""

    packets: int = 0
    with_data: int = 0
    again: int = 0
    """Packets that it sent again."""
    duplicate_acks: int = 0
    """Acknowledgements of the same byte: a packet before it was missing at this end."""
    zero_windows: int = 0
    """Times at which it told its peer to send nothing more: it does not read."""
    resets: int = 0
    syns: int = 0


@dataclass
class Flow:
    """One connection."""

    stream: int
    client: str
    """address:port of the end that began, or that is seen first"""
    server: str
    line: int
    """1-based line of its first packet."""
    first_s: float
    last_s: float
    """Seconds since the first packet of the capture."""
    of_client: Side
    of_server: Side
    answered: bool = False
    """The server said more than a reset."""

    @property
    def never_answered(self) -> bool:
        """The client asked more than once, and heard nothing at all."""
        return self.of_client.syns > 1 and not self.of_server.packets

    @property
    def refused(self) -> bool:
        """The answer to the client's first packet was a reset."""
        return bool(self.of_client.syns and self.of_server.resets) and not self.answered


def read_flows(data: bytes) -> list[Flow]:
    """The connections in the order in which they begin; lines that are none of these fields are passed over."""
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
            # Of a capture that begins in the middle nobody knows who called whom, but for an answer to a SYN.
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
    """Stream, source, target, flags, seconds; None if a cell is not what it should be."""
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
    # A reset carries a window of zero as well.
    side.zero_windows += bool(cells[13]) and not flags & _RST
    side.resets += bool(flags & _RST)
    side.syns += flags & (_SYN | _ACK) == _SYN
    flow.answered |= side is flow.of_server and not flags & _RST
    flow.last_s = max(flow.last_s, time_s)
