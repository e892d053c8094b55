"""What NCCL says while it sets up and tears down communicators (init.cc, bootstrap.cc, net.cc, paths of 2.18 to 2.31).

    comm 0x… rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x… - Init START                  2.18 to 2.20
    ncclCommSplit comm 0x… rank 0 … busId 1b000 parent 0x… color 0 key 0 commId 0x… - Init START      2.21
    ncclCommSplit comm 0x… … busId 1b000 parent 0x… splitCount 1 color 0 key 0- Init START            2.22 to 2.28
    ncclCommSplit comm 0x… … busId 1b000 parent 0x… childCount 1 color 0 key 0- Init START            2.29, 2.30
    ncclCommSplit comm 0x… … busId 1b000 commId 0x… parent 0x… childCount 1 color 0 key 0 - Init START    2.31
    [Rank 0] ncclCommInitRankConfig comm 0x… … commId 0x… - Init START                                2.29 and later
    comm 0x… rank 0 nranks 8 cudaDev 0 busId 1b000 - Destroy COMPLETE (Abort, Revoke, START; nRanks; 2.31 with commId)

Two communicators of one process can share a commId: up to 2.20 it is made of the parent and the color alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
_RETURNED = re.compile(r"(?P<at>[\w./-]{1,200}:\d{1,7}) -> (?P<code>\d{1,3})(?: \[Async thread\])?$")


@dataclass(frozen=True)
class Message:
    """A message that matters: its kind and the named parts of it."""

    kind: str
    """comm | timings | setting | network | bootstrap | devices | channels | rings | trees | driver | ofi | no_rdma |
    returned"""
    parts: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A decimal part."""
        return int(self.parts[name]) if name in self.parts else None


# (words that stand in each of them, kind, expression), tried in order.
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
    (" -> ", "returned", _RETURNED),
)


def read_message(text: str) -> Message | None:
    """What a message of level INFO says of the set-up; None if it is not among those that matter."""
    for words, kind, pattern in _KINDS:
        if words in text and (found := pattern.search(text)):
            groups = found.groupdict().items()
            return Message(kind, {name.rstrip("_"): value for name, value in groups if value is not None})
    return None


def timing_parts(message: Message) -> dict[str, float]:
    """Seconds by phase of an `Init timings` line (kernels, alloc, bootstrap, allgathers, topo, graphs, connections)."""
    return {name: float(value) for name, value in _PART.findall(message.parts["parts"])}


def setting_value(message: Message) -> str:
    """The value of a variable; NCCL ends those of numbers with a full stop."""
    value = message.parts["value"].strip()
    return value[:-1] if re.fullmatch(r"-?\d+\.", value) else value
