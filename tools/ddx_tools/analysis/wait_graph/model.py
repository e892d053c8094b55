"""The data model of the wait graph: what waits, for what, and how each wait is known.

Sources add nodes, edges, conditions and mismatches but draw no conclusions; `roots` does. An operation in which members
of a group meet is also a node: ranks in it wait for it, and it waits for members that are not in it. So a collective
of n ranks has n edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ddx_tools.analysis.collectives.findings import Aspect
from ddx_tools.analysis.collectives.odd_ranks import Sides
from ddx_tools.model.diagnosis import Evidence, Location, SuspectEvent
from ddx_tools.model.grouping import gathered


class NodeKind(StrEnum):
    """Kinds of things that wait or are waited for."""

    THREAD = "thread"
    """A thread of a rank. The thread without a name stands for the rank's program."""
    CHILD = "child"
    """A process that a rank started."""
    DEVICE = "device"
    """The queue of a rank's device."""
    STORE = "store"
    """The rendezvous store."""
    HOST = "host"
    OPERATION = "operation"
    """A collective or a transfer in which ranks meet."""
    RESOURCE = "resource"
    """A file, lock, pipe or socket whose other end is not known."""


class EdgeKind(StrEnum):
    """Ways in which a node waits for another."""

    COLLECTIVE = "collective"
    TRANSFER = "transfer"
    JOIN = "join"
    LOCK = "lock"
    QUEUE = "queue"
    GIL = "gil"
    CHILD = "child"
    PIPE = "pipe"
    FILE_LOCK = "file_lock"
    SOCKET = "socket"
    STORE_KEY = "store_key"
    DEVICE = "device"
    POLL = "poll"
    """It polls: it sleeps and checks again."""


class Sure(StrEnum):
    """How certain it is that a node waits for another, most certain first."""

    SEEN = "seen"
    INFERRED = "inferred"
    """The material shows no other node that it could wait for."""
    POSSIBLE = "possible"
    """It waits for one of several nodes, or for a node about which nothing is known."""


class Source(StrEnum):
    """The source of a wait. If two disagree, the one listed first is believed: it is nearer to the program."""

    RECORDS = "flight_records"
    STACKS = "stacks"
    PROCESSES = "processes"
    RAS = "nccl_ras"
    """NCCL's launch counts per communicator."""
    INSPECTOR = "nccl_inspector"
    """What ranks finished per communicator."""
    LOGS = "logs"


class Node(NamedTuple):
    """A node of the wait graph: something that waits or is waited for."""

    kind: NodeKind
    name: str = ""
    rank: int = -1
    """The rank that it belongs to; -1 if it belongs to none."""
    host: str = ""
    attempt: int = -1
    """The launcher's attempt number, if the source distinguishes attempts."""


def program_of(rank: int) -> Node:
    """The node of a rank's program: its main thread, or what its record shows."""
    return Node(NodeKind.THREAD, rank=rank)


class NodeState(StrEnum):
    """Known states of a node, apart from its waits."""

    ENDED = "ended"
    STOPPED = "stopped"
    """The kernel keeps it from running."""
    OUTSIDE = "outside"
    """Nothing that it called is pending, or what it is in waits for no rank."""
    DEVICE_BEHIND = "device_behind"
    """It called an operation that its device never started."""
    STANDS_STILL = "stands_still"
    """Its pending operations were finished by its peers long ago."""
    ELSEWHERE = "elsewhere"
    """It called a different operation from its peers under one number."""
    UNSEEN = "unseen"
    """Its source no longer shows what it is in."""
    UNKNOWN = "unknown"
    """There is no evidence about it."""
    UNREAD = "unread"
    """Its evidence could not be read."""


EVENTS = {
    NodeState.ENDED: SuspectEvent.ENDED,
    NodeState.STOPPED: SuspectEvent.OUTSIDE,
    NodeState.OUTSIDE: SuspectEvent.ABSENT,
    NodeState.DEVICE_BEHIND: SuspectEvent.ABSENT,
    NodeState.STANDS_STILL: SuspectEvent.ABSENT,
    NodeState.ELSEWHERE: SuspectEvent.MISMATCHED,
    NodeState.UNSEEN: SuspectEvent.ABSENT,
    NodeState.UNKNOWN: SuspectEvent.SILENT,
    NodeState.UNREAD: SuspectEvent.SILENT,
}
"""The event that makes a root in this state a suspect."""


@dataclass(frozen=True)
class NodeCondition:
    """A node's condition according to one source, apart from its waits."""

    state: NodeState
    source: Source
    says: str = ""
    """What the node does, for a person: `is in os.read() at loader.py:14`."""
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    moves: bool | None = None
    """Whether it works and makes progress; None if unknown."""


@dataclass(frozen=True)
class WaitEdge:
    """An edge of the wait graph: one node waits for another."""

    waiter: Node
    awaited: Node
    kind: EdgeKind
    source: Source
    certainty: Sure = Sure.SEEN
    evidence: Evidence | None = None
    wait_s: float | None = None
    """Duration of the wait in seconds; None if unknown."""


@dataclass(frozen=True)
class CallMismatch:
    """A disagreement: members of a group differ under one number, or ranks of a circle deviate from all others."""

    aspect: Aspect | str
    at: Node | None
    """The operation in which they differ; None if it is not a single one."""
    deviating: tuple[int, ...]
    """The ranks that differ from a majority; all of them if there is none."""
    decided: bool
    source: Source
    says: str = ""
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    sides: Sides | None = None


@dataclass
class Operation:
    """An operation between ranks: its name, its members, and how complete the evidence about it is."""

    words: str
    """The operation in words: `all_reduce (collective 412 of default_pg)`."""
    kind: EdgeKind
    source: Source
    members: frozenset[int] | None = None
    """Global ranks; None if unknown."""
    unsettled: bool = False
    """For some members the evidence is too old to show whether they are in it."""
    complete: bool = False
    """All members are in it, and none finishes it."""
    called_ahead: bool = False
    """Its callers are still in an earlier operation, which no evidence shows."""
    hides_root: bool = False
    """Members may disagree on its root, which no evidence shows."""
    open_members: bool = False
    """Its call passes a process group, so that ranks in other operations need not be members."""
    several_groups: bool = False
    """Its call passes another process group in each round of a loop: ranks in it may wait in different groups."""


@dataclass
class WaitGraph:
    """All known waits in one attempt of a job, with what is known about its ranks."""

    edges: list[WaitEdge] = field(default_factory=list)
    conditions: dict[Node, list[NodeCondition]] = field(default_factory=dict)
    operations: dict[Node, Operation] = field(default_factory=dict)
    mismatches: list[CallMismatch] = field(default_factory=list)
    left_behind: set[Node] = field(default_factory=set)
    """Transfers whose peer has already passed its end in the same round of the program."""
    off_path: set[int] = field(default_factory=set)
    """The only rank that made two calls in a row which no rank makes in a row anywhere else, if there are transfers."""
    precedes: set[tuple[Node, Node]] = field(default_factory=set)
    """Pairs of operations: a rank in the first reaches the second by itself."""
    ranks: set[int] = field(default_factory=set)
    """All ranks that the job is known to have."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Per rank, the host it runs on, as far as known."""
    unreported: set[int] = field(default_factory=set)
    """Ranks about which no source reports anything."""
    of_other_runs: set[int] = field(default_factory=set)
    """Ranks of which there is only a record of another run of the job."""
    absent: set[int] = field(default_factory=set)
    """Ranks that could not be captured because their host does not answer."""
    gone: set[int] = field(default_factory=set)
    """Ranks that ended by themselves: their peers wait for them, whether or not another source mentions them."""
    doing: dict[int, NodeCondition] = field(default_factory=dict)
    """Per rank, what the main thread does according to its stack, for a person."""
    lone_source: bool = False
    """Only one rank was sampled, so missing evidence about others means nothing."""

    def wait(self, edge: WaitEdge) -> None:
        """Add a wait to the graph."""
        self.edges.append(edge)

    def note(self, node: Node, condition: NodeCondition) -> None:
        """Record a node's condition."""
        self.conditions.setdefault(node, []).append(condition)

    def state(self, rank: int) -> NodeCondition | None:
        """The condition of a rank's program according to the nearest source; None if unknown."""
        order = list(Source)
        known = self.conditions.get(program_of(rank), ())
        return min(known, key=lambda condition: order.index(condition.source), default=None)

    def leaving(self, *certainties: Sure) -> dict[Node, set[Node]]:
        """For each node, the nodes that it waits for by edges of the given certainties; every node is a key."""
        found: dict[Node, set[Node]] = {}
        for edge in self.edges:
            if edge.certainty in certainties:
                found.setdefault(edge.waiter, set()).add(edge.awaited)
                found.setdefault(edge.awaited, set())
        return found

    def in_operation(self) -> dict[Node, list[Node]]:
        """Per operation, the nodes that wait in it."""
        return gathered((edge.awaited, edge.waiter) for edge in self.edges if edge.awaited in self.operations)


def ranks_of(nodes: Iterable[Node]) -> set[int]:
    """The ranks that nodes belong to."""
    return {node.rank for node in nodes if node.rank >= 0}
