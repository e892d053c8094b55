"""The wait graph: what waits, for what, and how each wait is known.

Sources add nodes, edges, conditions and mismatches, and draw no conclusions; `roots` does. An operation in which
members of a group meet is a node as well: who is in it waits for it, and it waits for the members that are not. So a
collective of n ranks has n edges.
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
    """What can wait or be waited for."""

    THREAD = "thread"
    """A thread of a rank. The one without a name stands for the rank's program."""
    CHILD = "child"
    """A process that a rank started."""
    DEVICE = "device"
    """The queue of a rank's device."""
    STORE = "store"
    """The store of the rendezvous."""
    HOST = "host"
    OPERATION = "operation"
    """A collective or a transfer in which ranks meet."""
    RESOURCE = "resource"
    """A file, lock, pipe or socket whose other end is not known."""


class EdgeKind(StrEnum):
    """How a node waits for another."""

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
    """It sleeps and asks again."""


class Sure(StrEnum):
    """How sure it is that a node waits for another, surest first."""

    SEEN = "seen"
    INFERRED = "inferred"
    """The material shows no other that it could wait for."""
    POSSIBLE = "possible"
    """It waits for one of several, or for one of which nothing is known."""


class Source(StrEnum):
    """The source of a wait. Of two that disagree, the first one here is believed: it is nearer to the program."""

    RECORDS = "flight_records"
    STACKS = "stacks"
    PROCESSES = "processes"
    RAS = "nccl_ras"
    """What NCCL counts of its communicators."""
    LOGS = "logs"


class Node(NamedTuple):
    """One thing that waits or is waited for."""

    kind: NodeKind
    name: str = ""
    rank: int = -1
    """The rank that it belongs to; -1 for what belongs to none."""
    host: str = ""
    attempt: int = -1
    """Of the launcher, where the source tells attempts apart."""


def program_of(rank: int) -> Node:
    """The node of a rank's program: its main thread, or what its record shows."""
    return Node(NodeKind.THREAD, rank=rank)


class NodeState(StrEnum):
    """What is known about a node apart from its waits."""

    ENDED = "ended"
    STOPPED = "stopped"
    """The kernel keeps it from running."""
    OUTSIDE = "outside"
    """Nothing that it called is pending, or it is in something that waits for no rank."""
    DEVICE_BEHIND = "device_behind"
    """It called an operation that its device never came to."""
    STANDS_STILL = "stands_still"
    """Its peers finished long ago what it has pending."""
    ELSEWHERE = "elsewhere"
    """It called something else than its peers under one number."""
    UNSEEN = "unseen"
    """Its source has lost what it is in."""
    UNKNOWN = "unknown"
    """There is no evidence of it."""
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
"""What makes a root of this state a suspect."""


@dataclass(frozen=True)
class NodeCondition:
    """What one source knows about a node apart from its waits."""

    state: NodeState
    source: Source
    says: str = ""
    """What the node does, for a person: `is in os.read() at loader.py:14`."""
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    moves: bool | None = None
    """It works and makes progress; None if nothing shows it."""


@dataclass(frozen=True)
class WaitEdge:
    """One node waits for another."""

    waiter: Node
    awaited: Node
    kind: EdgeKind
    source: Source
    certainty: Sure = Sure.SEEN
    evidence: Evidence | None = None
    wait_s: float | None = None
    """For how long, seconds; None if that is not known."""


@dataclass(frozen=True)
class CallMismatch:
    """Members of one group differ at one number, or ranks of a circle differ from what all others do."""

    aspect: Aspect | str
    at: Node | None
    """The operation in which they differ; None where it is no single one."""
    deviating: tuple[int, ...]
    """Against whom a majority stands; all of them where there is none."""
    decided: bool
    source: Source
    says: str = ""
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    sides: Sides | None = None


@dataclass
class Operation:
    """What is known about an operation between ranks."""

    words: str
    """`all_reduce (collective 412 of default_pg)`."""
    kind: EdgeKind
    source: Source
    members: frozenset[int] | None = None
    """Global ranks; None if not known."""
    unsettled: bool = False
    """Of some members what tells is too old to say whether they are in it."""
    complete: bool = False
    """All members are in it, and nobody gets out."""
    called_ahead: bool = False
    """Those in it called it, and are in something before it that nothing shows."""
    hides_root: bool = False
    """Members may disagree on its root, which nothing tells."""


@dataclass
class WaitGraph:
    """All waits that are known of one attempt of a job."""

    edges: list[WaitEdge] = field(default_factory=list)
    conditions: dict[Node, list[NodeCondition]] = field(default_factory=dict)
    operations: dict[Node, Operation] = field(default_factory=dict)
    mismatches: list[CallMismatch] = field(default_factory=list)
    left_behind: set[Node] = field(default_factory=set)
    """Transfers whose other end is behind them in the same round of the program."""
    precedes: set[tuple[Node, Node]] = field(default_factory=set)
    """Two operations: who is in the first comes to the second by itself."""
    ranks: set[int] = field(default_factory=set)
    """All ranks that the job is known to have."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank, where it runs, as far as known."""
    unreported: set[int] = field(default_factory=set)
    """Ranks of which no source tells anything."""
    absent: set[int] = field(default_factory=set)
    """Ranks that nobody could look at, since their host does not answer."""
    gone: set[int] = field(default_factory=set)
    """Ranks that ended by themselves: their peers wait for them, whether or not anything else reports them."""
    doing: dict[int, NodeCondition] = field(default_factory=dict)
    """By rank, what the main thread does, as its stack shows it: for a person."""
    lone_source: bool = False
    """Only one rank was sampled: missing evidence of others means nothing."""

    def wait(self, edge: WaitEdge) -> None:
        """Add an edge."""
        self.edges.append(edge)

    def note(self, node: Node, condition: NodeCondition) -> None:
        """Add what is known of a node."""
        self.conditions.setdefault(node, []).append(condition)

    def state(self, rank: int) -> NodeCondition | None:
        """What the nearest source knows of a rank's program."""
        order = list(Source)
        known = self.conditions.get(program_of(rank), ())
        return min(known, key=lambda condition: order.index(condition.source), default=None)

    def leaving(self, *certainties: Sure) -> dict[Node, set[Node]]:
        """For each node of an edge of some certainties, the nodes that it waits for; every node is a key."""
        found: dict[Node, set[Node]] = {}
        for edge in self.edges:
            if edge.certainty in certainties:
                found.setdefault(edge.waiter, set()).add(edge.awaited)
                found.setdefault(edge.awaited, set())
        return found

    def in_operation(self) -> dict[Node, list[Node]]:
        """Who waits in each operation."""
        return gathered((edge.awaited, edge.waiter) for edge in self.edges if edge.awaited in self.operations)


def ranks_of(nodes: Iterable[Node]) -> set[int]:
    """The ranks that nodes belong to."""
    return {node.rank for node in nodes if node.rank >= 0}
