"""Collects one process's NCCL lines: its communicators, their connections, settings, warnings.

A communicator's pointer has a meaning only in its process. Across processes, the commId identifies it or, for a split
without one, the parent's identity with the split's number and color.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from ddx_tools.analysis.nccl.process_rows import STAGES
from ddx_tools.parsers.nccl.nccl_lines import (
    Edge,
    Message,
    NcclGraph,
    NcclLine,
    read_banner,
    read_edge,
    read_graph,
    read_message,
    setting_value,
    timing_parts,
)

_MOST_EDGES = 20_000
_MOST_GRAPHS = 64
_MOST_CHOICES = 200
_MOST_WARNINGS = 50
_MOST_SETTINGS = 200
_QUOTE = 400
_TROUBLE = re.compile(r", retrying|async event")
"""Words in INFO messages that report trouble."""
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True)
class LinePlace:
    """The source and number of a line."""

    source: str
    line: int | None
    """The line number, from 1; None if the beginning of the file was not read."""
    quote: str = ""


@dataclass
class Membership:
    """A process's membership in one communicator."""

    communicator: str | None
    """The communicator's identity across processes; None if it cannot be matched."""
    pointer: str
    rank: int
    nranks: int
    cuda_device: int
    bus_id: str
    nvml_device: int | None = None
    api: str | None = None
    parent: str | None = None
    color: int | None = None
    key: int | None = None
    started: LinePlace | None = None
    completed: LinePlace | None = None
    ended: str | None = None
    """Destroy | Abort | Revoke once complete; `… START` if only its start was logged."""
    stage: str = "bootstrap"
    """How far its set-up got: bootstrap | graphs | connecting | rings_connected | trees_connected | channels_ready |
    complete"""
    last: LinePlace | None = None
    """The last line about its set-up."""
    timings_s: dict[str, float] = field(default_factory=dict)
    total_s: float | None = None
    pxn: bool | None = None
    gdr: bool | None = None
    channels: dict[str, int] = field(default_factory=dict)
    edges: dict[Edge, tuple[int, LinePlace]] = field(default_factory=dict)
    """{edge without its channel number: (channels, first line)}"""
    graphs: list[tuple[NcclGraph, LinePlace]] = field(default_factory=list)


@dataclass
class Warned:
    """A warning, and how many messages of its kind there are."""

    line: NcclLine
    place: LinePlace
    times: int = 1


@dataclass
class Chosen:
    """How many operations of a kind used one algorithm and protocol, and their sizes."""

    place: LinePlace
    channels: int | None
    times: int = 0
    least_bytes: int = 0
    most_bytes: int = 0


@dataclass
class ProcessLog:
    """Everything that one process's NCCL lines show."""

    host: str
    pid: int
    first: LinePlace
    rank_label: int | None = None
    device: int | None = None
    version: str | None = None
    cuda: str | None = None
    driver: int | None = None
    ofi: str | None = None
    network: str | None = None
    interface: str | None = None
    """The network interface of the bootstrap."""
    address: str | None = None
    devices: str | None = None
    places: dict[str, LinePlace] = field(default_factory=dict)
    """The lines that name its version, driver, ofi, network, interface and devices, or say that there is no RDMA
    device."""
    settings: dict[str, tuple[str, LinePlace]] = field(default_factory=dict)
    memberships: list[Membership] = field(default_factory=list)
    warnings: dict[tuple[str, str | None, int | None], Warned] = field(default_factory=dict)
    choices: dict[tuple[str, str, str], Chosen] = field(default_factory=dict)
    """{(operation, algorithm, protocol): …}"""
    returned: tuple[int, str, LinePlace] | None = None
    """The first error code that an NCCL function returned, and where."""
    _by_thread: dict[int, Membership] = field(default_factory=dict)
    _used_ids: Counter[str] = field(default_factory=Counter)
    _edges: int = 0

    def take(self, line: NcclLine, place: LinePlace) -> None:
        """Read one more line of the process."""
        self.rank_label = line.rank_label if self.rank_label is None else self.rank_label
        self.device = line.device if self.device is None else self.device
        if line.level != "INFO" or _TROUBLE.search(line.text):
            self._warn(line, place)
        elif banner := read_banner(line.text):
            self.version, self.cuda = banner
            self.places["version"] = place
        elif edge := read_edge(line.text):
            self._connect(line.tid, edge, place)
        elif graph := read_graph(line.text):
            if (membership := self._setting_up(line.tid)) is not None:
                _advance(membership, "graphs", place)
                if len(membership.graphs) < _MOST_GRAPHS:
                    membership.graphs.append((graph, place))
        elif message := read_message(line.text):
            self._hear(line.tid, message, place)

    def membership_of(self, pointer: str) -> Membership | None:
        """Return the communicator that a pointer currently refers to."""
        return next((one for one in reversed(self.memberships) if one.pointer == pointer), None)

    def _warn(self, line: NcclLine, place: LinePlace) -> None:
        alike = (_DIGITS.sub("#", line.text), line.file, line.line)
        if known := self.warnings.get(alike):
            known.times += 1
        elif len(self.warnings) < _MOST_WARNINGS:
            self.warnings[alike] = Warned(line, place)

    def _hear(self, tid: int, message: Message, place: LinePlace) -> None:
        parts = message.parts
        if name := _FACTS.get(message.kind):
            self.places[name] = place
        if message.kind == "comm":
            self._communicator(tid, message, place)
        elif message.kind == "setting" and len(self.settings) < _MOST_SETTINGS:
            self.settings.setdefault(parts["variable"], (setting_value(message), place))
        elif message.kind == "network":
            self.network = parts["network"].strip()
        elif message.kind == "bootstrap":
            self.interface, self.address = parts["interface"], parts["address"]
        elif message.kind == "devices":
            self.devices = f"NET/{parts['network']} {parts['devices'].strip()}"
        elif message.kind == "driver":
            self.driver = message.number("driver")
        elif message.kind == "ofi":
            self.ofi = parts["ofi"]
        elif message.kind == "choice":
            self._choose(message, place)
        elif message.kind == "returned":
            if self.returned is None and parts["code"] != "0":
                self.returned = (int(parts["code"]), parts["at"], place)
        elif (membership := self._setting_up(tid)) is not None:
            _hear_setup(membership, message, place)

    def _choose(self, message: Message, place: LinePlace) -> None:
        parts, size = message.parts, int(message.parts["bytes"])
        key = (parts["operation"], parts["algorithm"], parts["protocol"])
        known = self.choices.get(key)
        if known is None:
            if len(self.choices) >= _MOST_CHOICES:
                return
            channels = int(parts["last"]) - int(parts["first"]) + 1 if "last" in parts else None
            known = self.choices[key] = Chosen(place, channels, least_bytes=size, most_bytes=size)
        known.times += 1
        known.least_bytes, known.most_bytes = min(known.least_bytes, size), max(known.most_bytes, size)

    def _communicator(self, tid: int, message: Message, place: LinePlace) -> None:
        parts = message.parts
        membership = self.membership_of(parts["pointer"])
        if parts["what"] != "Init":
            if membership is not None:
                membership.ended = parts["what"] + (" START" if parts["state"] == "START" else "")
            return
        starts = parts["state"] == "START"
        if membership is not None and _is_told_twice(membership, message, place):
            self._by_thread[tid] = membership
            return
        if starts or membership is None or membership.ended:
            membership = self._new(message)
            self.memberships.append(membership)
        self._by_thread[tid] = membership
        if starts:
            membership.started = place
            membership.last = place
        else:
            membership.completed = place
            _advance(membership, "complete", place)

    def _new(self, message: Message) -> Membership:
        parts = message.parts
        parent = self.membership_of(parts["parent"]) if "parent" in parts else None
        identity = parts.get("id")
        if identity is None and parent is not None and parent.communicator and "color" in parts:
            identity = f"{parent.communicator}/{parts.get('child', '')}.{parts['color']}"
        if identity is not None:
            self._used_ids[identity] += 1
            if self._used_ids[identity] > 1:  # built only from the parent and the color, up to 2.20
                identity = f"{identity}#{self._used_ids[identity]}"
        return Membership(
            communicator=identity,
            pointer=parts["pointer"],
            rank=int(parts["rank"]),
            nranks=int(parts["nranks"]),
            cuda_device=int(parts["cuda"]),
            bus_id=parts["bus"],
            nvml_device=message.number("nvml"),
            api=parts.get("api"),
            parent=parent.communicator if parent else None,
            color=message.number("color"),
            key=message.number("key"),
        )

    def _setting_up(self, tid: int) -> Membership | None:
        """The communicator that a thread is setting up: the thread prints the start. Other threads print later
        connections."""
        if (own := self._by_thread.get(tid)) is not None:
            return own
        return next(
            (one for one in reversed(self.memberships) if not one.completed),
            self.memberships[-1] if self.memberships else None,
        )

    def _connect(self, tid: int, edge: Edge, place: LinePlace) -> None:
        membership = self._setting_up(tid)
        if membership is None or max(edge.source, edge.target) >= membership.nranks:
            return
        _advance(membership, "connecting", place)
        alike = replace(edge, channel=-1)
        if alike in membership.edges:
            count, first = membership.edges[alike]
            if first.source == place.source:
                membership.edges[alike] = (count + 1, first)
        elif self._edges < _MOST_EDGES:
            self._edges += 1
            membership.edges[alike] = (1, place)


def _is_told_twice(membership: Membership, message: Message, place: LinePlace) -> bool:
    """Whether this line was already read from another file: output kept per rank and also collected."""
    told = membership.started if message.parts["state"] == "START" else membership.completed
    same = (membership.rank, membership.nranks) == (int(message.parts["rank"]), int(message.parts["nranks"]))
    return told is not None and told.source != place.source and same


def _hear_setup(membership: Membership, message: Message, place: LinePlace) -> None:
    if message.kind == "timings":
        membership.total_s = float(message.parts["total"])
        membership.timings_s = timing_parts(message)
    elif message.kind == "channels":
        membership.channels = {name: int(value) for name, value in message.parts.items()}
        _advance(membership, "channels_ready", place)
    elif message.kind == "rings":
        if "pxn" in message.parts:
            membership.pxn, membership.gdr = message.parts["pxn"] == "1", message.parts["gdr"] == "1"
        if membership.stage == "channels_ready":  # since 2.22 the first collective connects, after the set-up
            membership.completed = place
            _advance(membership, "complete", place)
        _advance(membership, "rings_connected", place)
    elif message.kind == "trees":
        _advance(membership, "trees_connected", place)


_FACTS = {name: name for name in ("network", "driver", "ofi", "no_rdma", "devices")} | {"bootstrap": "interface"}


def _advance(membership: Membership, stage: str, place: LinePlace) -> None:
    if STAGES.index(stage) >= STAGES.index(membership.stage):
        membership.stage = stage
        membership.last = place


def quote_of(line: NcclLine) -> str:
    """Return the text of a line, for evidence."""
    return line.raw[:_QUOTE]
