"""Reads lines of NCCL_DEBUG output, with NCCL's message prefix in all its versions.

    node:4242:4300 [3] NCCL INFO …                             host:pid:tid [CUDA device]   (debug.cc of 2.18 to 2.30)
    node:4242:4300 [3] transport/net.cc:77 NCCL WARN …         after an empty line
    [2026-11-21 10:00:00] node:4242:4300 [3] …                 2.26 and later; by default for WARN only
    node:4242:4300 [3] init.cc:77 (ncclCommInit) NCCL WARN …   2.30 and later
    node:4242:4300 [3] init.cc:77 (ncclCommInit) NCCL ERROR …  2.31: a separate level for root causes, read like WARN
    NCCL version 2.21.5+cuda12.4                               the banner has no prefix
    RCCL version : 2.21.5-HEAD:1a2b3c4                         AMD's, with branch and commit

A launcher may have added labels before it (`3: `, `[rank3]: `, `[1,3]<stdout>:`, a time), or colours in it. The number
in brackets is the CUDA device in its process, never a rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LINE_LIMIT = 4_000
"""How many characters of a line are read; NCCL itself truncates lines at 1,024."""

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]")
_PREFIX = re.compile(
    r"(?:\[(?P<time>\d[^\]\n]{3,40})\] )?"
    r"(?P<host>[A-Za-z0-9_][\w.-]{0,252}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[(?P<device>\d{1,4})\] )?"
    r"(?:(?P<file>[\w./-]{1,200}):(?P<line>\d{1,7}) (?:\((?P<function>[^()\n]{1,120})\) )?)?"
    r"NCCL (?P<level>INFO|WARN|ERROR) (?P<text>.*)"
)
_BANNER = re.compile(
    r"(?:NCCL version|RCCL version :) (?P<version>\d{1,3}\.\d{1,3}[\w.+-]{0,60}?)"
    r"(?:\+cuda(?P<cuda>\d{1,3}\.\d{1,3})|-[A-Za-z][\w./-]{0,80}:\w{1,40}\+?)?$"
)
_TEST_RANK = re.compile(
    r"# +Rank +(?P<rank>\d{1,7}) (?:Group +\d{1,7} )?Pid +(?P<pid>\d{1,10}) on +(?P<host>[\w.-]{1,253}) device +\d"
)
_RANK_LABEL = re.compile(r"\[rank:? ?(\d{1,6})\]|\[\d{1,6},(\d{1,6})\]<std(?:out|err)>", re.I)


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One NCCL message, and the process and thread that wrote it."""

    host: str
    pid: int
    tid: int
    device: int | None
    """The CUDA device in the process."""
    level: str
    """The level: INFO, WARN or ERROR."""
    text: str
    raw: str
    """The line as in the file, without colours."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    time: str | None = None
    rank_label: int | None = None
    """The rank in a label that a launcher or torch wrote before the line."""


def read_nccl_line(raw: str) -> NcclLine | None:
    """Return the NCCL message in a line; None for anything else."""
    raw = plain(raw)
    found = _PREFIX.search(raw)
    if not found:
        return None
    label = _RANK_LABEL.search(raw, 0, found.start())
    return NcclLine(
        host=found["host"],
        pid=int(found["pid"]),
        tid=int(found["tid"]),
        device=int(found["device"]) if found["device"] else None,
        level=found["level"],
        text=found["text"].strip(),
        raw=raw.strip(),
        file=found["file"],
        line=int(found["line"]) if found["line"] else None,
        function=found["function"],
        time=found["time"],
        rank_label=int(label[1] or label[2]) if label else None,
    )


def read_banner(text: str) -> tuple[str, str | None] | None:
    """Return (NCCL version, CUDA version it was built with) from a banner, with or without a prefix."""
    found = _BANNER.search(text.rstrip())
    return (found["version"], found["cuda"]) if found else None


def read_test_rank(text: str) -> tuple[str, int, int] | None:
    """Return (host, pid, rank) from a line that nccl-tests prints for each rank before it begins (common.cu)."""
    found = _TEST_RANK.search(text)
    return (found["host"], int(found["pid"]), int(found["rank"])) if found else None


def plain(raw: str) -> str:
    """Return a line without colours, cut to the limit."""
    raw = raw[:LINE_LIMIT]
    return _ANSI.sub("", raw) if "\x1b" in raw else raw


_MARKS = (b" NCCL INFO ", b" NCCL WARN ", b" NCCL ERROR ")


def holds_nccl(data: bytes) -> bool:
    """Return whether a piece of a file has NCCL lines."""
    return any(mark in data for mark in _MARKS)


# --- NCCL's messages while it sets up and tears down communicators (init.cc, bootstrap.cc, net.cc, paths of 2.18 to
# 2.31)
#     comm 0x… rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x… - Init START                  2.18 to 2.20
#     ncclCommSplit comm 0x… rank 0 … busId 1b000 parent 0x… color 0 key 0 commId 0x… - Init START      2.21
#     ncclCommSplit comm 0x… … busId 1b000 parent 0x… splitCount 1 color 0 key 0- Init START            2.22 to 2.28
#     ncclCommSplit comm 0x… … busId 1b000 parent 0x… childCount 1 color 0 key 0- Init START            2.29, 2.30
#     ncclCommSplit comm 0x… … busId 1b000 commId 0x… parent 0x… childCount 1 color 0 key 0 - Init START    2.31
#     [Rank 0] ncclCommInitRankConfig comm 0x… … commId 0x… - Init START                                2.29 and later
#     comm 0x… rank 0 nranks 8 cudaDev 0 busId 1b000 - Destroy COMPLETE (Abort, Revoke, START; nRanks; 2.31 with commId)
# Two communicators of one process can share a commId: up to 2.20 it is built only from the parent and the color.

_COMM = re.compile(
    r"(?:\[Rank \d{1,7}\] )?(?:(?P<api>ncclComm\w{1,40}|\w{1,40}) )?comm (?P<pointer>0x[0-9a-f]{1,16}) "
    r"rank (?P<rank>\d{1,7}) n[rR]anks (?P<nranks>\d{1,7}) cudaDev (?P<cuda>\d{1,4})"
    r"(?: nvmlDev (?P<nvml>\d{1,4}))? busId (?P<bus>[0-9a-f]{1,16})(?: commId (?P<id_>0x[0-9a-f]{1,16}))?"
    r"(?: parent (?P<parent>0x[0-9a-f]{1,16})(?: (?:split|child)Count (?P<child>\d{1,9}))?"
    r" color (?P<color>-?\d{1,11}) key (?P<key>-?\d{1,11}))?"
    r"(?: commId (?P<id>0x[0-9a-f]{1,16}))? ?- (?P<what>Init|Destroy|Abort|Revoke) (?P<state>START|COMPLETE)"
)
_TIMINGS = re.compile(
    r"Init timings(?: - (?P<api>\w{1,60}))?: rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) "
    r"total (?P<total>\d{1,9}\.\d{1,6}) \((?P<parts>[^)]{0,300})\)"
)
_PART = re.compile(r"(\w{1,40}) (\d{1,9}\.\d{1,6})")
_SETTING = re.compile(r"(?P<variable>NCCL_[A-Z0-9_]{1,80}) set (?:by environment )?to (?P<value>.{0,1000})")
_NETWORK = re.compile(r"Using network (?P<network>[^\n]{1,60})")
_BOOTSTRAP = re.compile(
    r"Bootstrap ?: Using (?:\[\d+\])?(?P<interface>[\w.@-]{1,40}):(?P<address>[0-9A-Fa-f.:%\w]{2,60}?)<\d{1,5}>"
)
_DEVICES = re.compile(r"NET/(?P<network>IB|Socket) ?: Using (?P<devices>\[0\][^\n]{1,400})")
_CHANNELS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels,(?: \d{1,4} collnet channels,)?(?: (?P<nvls>\d{1,4}) nvls channels,)?"
    r" (?P<p2p>\d{1,4}) p2p channels, (?P<per_peer>\d{1,4}) p2p channels per peer"
)
_RINGS = re.compile(r"Connected all rings(?:, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d))?")
_DRIVER = re.compile(r"cudaDriverVersion (?P<driver>\d{4,6})")
_NO_RDMA = re.compile(r"NET/IB ?: No device found")
_OFI = re.compile(r"NET/OFI Initializing aws-ofi-nccl (?P<ofi>[\w.+-]{1,60})")
_CHOICE = re.compile(
    r"(?P<operation>[A-Za-z]\w{0,40}): (?P<bytes>\d{1,18}) Bytes -> "
    r"Algo (?P<algorithm>\w{1,40}) proto (?P<protocol>\w{1,40})"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<first>\d{1,4})\.\.(?P<last>\d{1,4})\})?"
)
"""The line printed with NCCL_DEBUG_SUBSYS=TUNING (enqueue.cc of 2.24 and later)."""
_RETURNED = re.compile(r"(?P<at>[\w./-]{1,200}:\d{1,7}) -> (?P<code>\d{1,3})(?: \[Async thread\])?$")


@dataclass(frozen=True)
class Message:
    """A message that matters: its kind and its named parts."""

    kind: str
    """comm | timings | setting | network | bootstrap | devices | channels | rings | trees | driver | ofi | no_rdma |
    choice | returned"""
    parts: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """Return a named part as a decimal number; None if it is missing."""
        return int(self.parts[name]) if name in self.parts else None


# (needle in each such message, kind, expression), tried in order.
_KINDS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    (" busId ", "comm", _COMM),
    ("Init timings", "timings", _TIMINGS),
    (" set ", "setting", _SETTING),
    ("Using network ", "network", _NETWORK),
    ("Bootstrap", "bootstrap", _BOOTSTRAP),
    (": Using [", "devices", _DEVICES),
    (" coll channels", "channels", _CHANNELS),
    ("Connected all rings", "rings", _RINGS),
    ("Connected all trees", "trees", re.compile("Connected all trees")),
    ("cudaDriverVersion ", "driver", _DRIVER),
    ("NET/OFI Init", "ofi", _OFI),
    ("No device found", "no_rdma", _NO_RDMA),
    (" Bytes -> Algo ", "choice", _CHOICE),
    (" -> ", "returned", _RETURNED),
)


def read_message(text: str) -> Message | None:
    """Return an INFO message about the set-up; None if it is not one that matters."""
    for words, kind, pattern in _KINDS:
        if words in text and (found := pattern.search(text)):
            groups = found.groupdict().items()
            return Message(kind, {name.rstrip("_"): value for name, value in groups if value is not None})
    return None


def timing_parts(message: Message) -> dict[str, float]:
    """Return the seconds per phase of an `Init timings` line (kernels, alloc, bootstrap, allgathers, topo, graphs,
    connections)."""
    return {name: float(value) for name, value in _PART.findall(message.parts["parts"])}


def setting_value(message: Message) -> str:
    """Return the value of a variable; NCCL prints a full stop after numbers."""
    value = message.parts["value"].strip()
    return value[:-1] if re.fullmatch(r"-?\d+\.", value) else value


# --- rings, trees and the transport of each connection, in the form of NCCL 2.18 to 2.30 (rings.cc, init.cc,
# transport/)
#     Channel 00/02 : 0 1 2 3                                    a ring; cut with "..." since 2.26
#     Ring 00 : 3 -> 0 -> 1                                      a rank's predecessor and successor (GRAPH; init.cc)
#     Trees [0] 1/-1/-1->0->-1 [1] …                             down->rank->up, per channel
#     Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read             a connection within a host
#     Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
#     Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0(2)/GDRDMA  through the network, here by rank 2's proxy (PXN)
# Numbers in brackets after a rank are NVML GPU indices. Ranks are those of the communicator.

_EDGE = re.compile(
    r"Channel (?P<channel>\d{1,4})(?:/\d{1,3})? : (?P<source>\d{1,7})\[[0-9a-f]{1,16}\] -> "
    r"(?P<target>\d{1,7})\[[0-9a-f]{1,16}\] (?:\[(?P<direction>send|receive)\] )?"
    r"via (?P<via>\S.{0,120}?)(?: comm 0x[0-9a-f]{1,16} n[rR]anks \d{1,7})?$"
)
_NET = re.compile(r"NET/(?P<network>[^/]{1,60})/(?P<device>-?\d{1,4})(?:\((?P<proxy>\d{1,7})\))?(?P<flags>.{0,60})")
_RING = re.compile(r"Channel (?P<channel>\d{1,4})/\d{1,4} :(?P<ranks>(?: +\d{1,7}){1,1000})(?: ?\.\.\.)?$")
_RING_PART = re.compile(r"Ring (?P<channel>\d{1,4}) : (?P<before>\d{1,7}) -> (?P<rank>\d{1,7}) -> (?P<behind>\d{1,7})$")
_TREES = re.compile(r"Trees (?P<trees>\[\d{1,4}\] [-\d/>\[\] ]{1,1500})")


@dataclass(frozen=True)
class Edge:
    """One end of one channel between two ranks of a communicator."""

    channel: int
    source: int
    target: int
    direction: str | None
    """send or receive, for connections over the network."""
    transport: str
    """p2p | p2p_indirect | shm | net | other"""
    via: str
    """The transport as printed by NCCL."""
    network: str | None = None
    device: int | None = None
    """The number of the network device."""
    gpudirect: bool | None = None
    """Whether the network device accesses GPU memory directly; None within a host."""
    proxy: int | None = None
    """The rank whose network device is used, if not the sender's own (PXN)."""


@dataclass(frozen=True)
class NcclGraph:
    """A ring, part of a ring, or the trees of a communicator."""

    kind: str
    """ring | ring_cut (only the beginning of a long ring is printed) | ring_part | trees"""
    channel: int | None
    text: str


def read_edge(text: str) -> Edge | None:
    """Return the connection in the text after `NCCL INFO`; None if there is none."""
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


def read_graph(text: str) -> NcclGraph | None:
    """Return the ring or trees in the text after `NCCL INFO`; None if there are none."""
    if ring := _RING.match(text):
        kind = "ring_cut" if text.rstrip().endswith("...") else "ring"
        return NcclGraph(kind, int(ring["channel"]), " ".join(ring["ranks"].split()))
    if part := _RING_PART.match(text):
        return NcclGraph("ring_part", int(part["channel"]), f"{part['before']} {part['rank']} {part['behind']}")
    trees = _TREES.match(text)
    return NcclGraph("trees", None, trees["trees"].strip()) if trees else None
