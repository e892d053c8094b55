"""Rings, trees and the transport of each connection, as NCCL 2.18 to 2.30 prints them (rings.cc, init.cc, transport/).

    Channel 00/02 : 0 1 2 3                                    a ring; cut with "..." since 2.26
    Trees [0] 1/-1/-1->0->-1 [1] …                             down->rank->up, per channel
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read             a connection within a host
    Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0(2)/GDRDMA  through the network, here by the proxy of rank 2 (PXN)

Numbers in brackets behind a rank are GPUs as NVML counts them. Ranks are those of the communicator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EDGE = re.compile(
    r"Channel (?P<channel>\d{1,4})(?:/\d{1,3})? : (?P<source>\d{1,7})\[[0-9a-f]{1,16}\] -> "
    r"(?P<target>\d{1,7})\[[0-9a-f]{1,16}\] (?:\[(?P<direction>send|receive)\] )?"
    r"via (?P<via>\S.{0,120}?)(?: comm 0x[0-9a-f]{1,16} n[rR]anks \d{1,7})?$"
)
_NET = re.compile(r"NET/(?P<network>[^/]{1,60})/(?P<device>-?\d{1,4})(?:\((?P<proxy>\d{1,7})\))?(?P<flags>.{0,60})")
_RING = re.compile(r"Channel (?P<channel>\d{1,4})/\d{1,4} :(?P<ranks>(?: +\d{1,7}){1,1000})(?: ?\.\.\.)?$")
_TREES = re.compile(r"Trees (?P<trees>\[\d{1,4}\] [-\d/>\[\] ]{1,1500})")


@dataclass(frozen=True)
class Edge:
    """One end of one channel between two ranks of a communicator."""

    channel: int
    source: int
    target: int
    direction: str | None
    """send or receive, for connections through the network."""
    transport: str
    """p2p | p2p_indirect | shm | net | other"""
    via: str
    """As NCCL prints it."""
    network: str | None = None
    device: int | None = None
    """Number of the network device."""
    gpudirect: bool | None = None
    """For the network: it reads and writes the GPU's memory directly."""
    proxy: int | None = None
    """The rank whose network device is used, if not the sender's own (PXN)."""


@dataclass(frozen=True)
class Graph:
    """A ring or the trees of a communicator."""

    kind: str
    """ring | trees"""
    channel: int | None
    text: str


def read_edge(text: str) -> Edge | None:
    """A connection, from the words behind `NCCL INFO`."""
    found = _EDGE.search(text)
    if not found:
        return None
    via = found["via"].strip()
    ends = (int(found["channel"]), int(found["source"]), int(found["target"]), found["direction"])
    if net := _NET.match(via):
        proxy = int(net["proxy"]) if net["proxy"] else None
        own = int(found["source"] if found["direction"] == "send" else found["target"])
        return Edge(
            *ends,
            "net",
            via,
            net["network"],
            int(net["device"]),
            "/GDRDMA" in net["flags"],
            None if proxy == own else proxy,
        )
    return Edge(*ends, _class_of(via), via)


def _class_of(via: str) -> str:
    if via.startswith("P2P/indirect"):
        return "p2p_indirect"
    if via.startswith("P2P/"):
        return "p2p"
    return "shm" if via.startswith("SHM") else "other"


def read_graph(text: str) -> Graph | None:
    """A ring or the trees, from the words behind `NCCL INFO`."""
    if ring := _RING.match(text):
        return Graph("ring", int(ring["channel"]), " ".join(ring["ranks"].split()))
    trees = _TREES.match(text)
    return Graph("trees", None, trees["trees"].strip()) if trees else None
