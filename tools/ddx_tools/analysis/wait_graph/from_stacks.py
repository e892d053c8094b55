"""Waits out of stacks: what each thread of each rank waits for, in its own process and of its peers.

A stack does not name the process group. Threads in one operation, called from one place, are taken to meet there with
all other ranks; a rank with no thread in it is awaited there. A main thread in `join()`, `Event.wait()`, `Queue.get()`
or for a lock waits for a thread of its own process that could end that. Who sends what a rank receives stands in the
frames only where local variables were asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.collectives.stacks.main_threads import CHILD, place_of_row, rank_views
from ddx_tools.analysis.collectives.stacks.point_to_point import with_transfers
from ddx_tools.analysis.wait_graph.model import (
    EdgeKind,
    Node,
    NodeCondition,
    NodeKind,
    NodeState,
    Operation,
    Source,
    Sure,
    WaitEdge,
    WaitGraph,
    program_of,
)
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.frame_classes import frame_rules
from ddx_tools.model.diagnosis import Evidence, Location
from ddx_tools.model.grouping import gathered

_IDLE_HELPERS = re.compile(
    r"concurrent/futures/thread\.py|tqdm/_monitor\.py|tensorboard/.*|wandb/.*|torch/utils/data/_utils/pin_memory\.py|"
    r"torch/_inductor/.*|multiprocessing/(pool|queues|resource_tracker)\.py|ray/.*|prometheus_client/.*"
)
"""Modules whose threads wait for work most of the time: nobody waits for them as long as they have none."""
_IDLE = ("lock_wait", "idle", "sleep", "socket_wait", "pipe_read", "worker_idle")
_OWN_THREADS = ("lock_wait", "shutdown")
"""Activities that a thread of the same process ends."""
_CHILDREN: Mapping[str, EdgeKind] = {
    "data_wait": EdgeKind.QUEUE,
    "subprocess_wait": EdgeKind.CHILD,
    "child_wait": EdgeKind.CHILD,
}
_MOST_EDGES = 500_000
_MOST_PEERS = 64
"""Whom a receive without a known peer may wait for is listed among so many ranks; among more it says nothing."""
_PEERS = ("dst", "src", "group_dst", "group_src")
_TRANSFERS = ("send", "recv", "isend", "irecv")


@dataclass(frozen=True)
class _Thread:
    """A thread as the last look showed it."""

    node: Node
    row: Mapping[str, Any]
    frames: Sequence[Mapping[str, Any]]
    """Innermost first."""

    @property
    def activity(self) -> str:
        return str(self.row["activity"])

    @property
    def waits_for_peers(self) -> bool:
        return self.activity in frame_rules().waits_for_peers

    @property
    def may_end_a_wait(self) -> bool:
        """Whether it does something that another thread of its process may wait for."""
        in_program = any(frame["is_user"] for frame in self.frames)
        if self.waits_for_peers or (in_program and self.activity not in _IDLE):
            return True
        helper = any(_IDLE_HELPERS.fullmatch(frame["module"] or "") for frame in self.frames)
        return in_program and not helper

    @property
    def moved(self) -> bool:
        """Whether it got on between two looks; a wait that polls wakes now and then for nothing."""
        row = self.row
        shows_in = frame_rules().progress_shows_in(self.activity, row["wchan"], bool(row["running"]))
        column = {"switched": "switched", "ran": "moved"}.get(shows_in)
        return column is not None and row[column] is True

    def evidence(self) -> Evidence:
        """Where it is, in the words in which a look at the rank shows it."""
        if self.row["source_line"] is not None:
            return Evidence(
                source=self.row["source"], line=self.row["source_line"], quote=self.row["source_text"] or ""
            )
        if self.node == program_of(self.node.rank):
            place = place_of_row(dict(self.row))
            code = f": {self.row['user_source']}" if self.row["user_source"] else ""
            doing = self.row["operation"] or self.activity
            quote = f"{place.file}:{place.line} {place.function}, {doing}{code}"
        else:
            quote = self._frame()
        return Evidence(source=self.row["source"], quote=quote[:400])

    def _frame(self) -> str:
        """The innermost frame of the program, else the innermost of all."""
        own = next((frame for frame in self.frames if frame["is_user"]), None)
        if own is None:
            return "{function} ({file}:{line})".format(**self.frames[0]) if self.frames else ""
        code = f": {own['code'].strip()}" if own["code"] else ""
        return f"{own['file']}:{own['line']} {own['function']}{code}"

    def location(self) -> Location | None:
        """The innermost line of the user's program."""
        return place_of_row(dict(self.row)) if json.loads(self.row["user_stack"] or "[]") else None

    def says(self) -> str:
        """What it does, in words."""
        place = self.location()
        words = frame_rules().words(self.activity)
        return f"is {words}{f' at {place.short()}' if place else ''}"


def add_stacks(graph: WaitGraph, store: Store) -> None:
    """Add what the stacks of a store tell. Of a rank whose flight record shows what it is in, it tells no waits."""
    if not store.holds_any(("stack_threads", "unread")):
        return
    threads = _threads(store)
    graph.ranks |= threads.keys()
    recorded = {edge.waiter.rank for edge in graph.edges} | {
        node.rank
        for node, known in graph.conditions.items()
        if any(
            each.state not in (NodeState.OUTSIDE, NodeState.UNSEEN, NodeState.UNKNOWN, NodeState.UNREAD)
            for each in known
        )
    }
    for rank, mine in sorted(threads.items()):
        main = next((thread for thread in mine if thread.node == program_of(rank)), None)
        if main is not None:
            graph.doing[rank] = _condition(main, NodeState.OUTSIDE)
            if rank not in recorded and (main.waits_for_peers or not graph.conditions.get(main.node)):
                # What a record calls nothing pending may be an operation that is not recorded.
                graph.conditions.pop(main.node, None)
    alone = {rank: mine for rank, mine in threads.items() if rank not in recorded}
    for rank in sorted(alone):
        _add_rank(graph, rank, alone[rank])
    _add_operations(graph, threads, alone.keys())
    for row in store.query("SELECT DISTINCT rank FROM unread WHERE rank IS NOT NULL"):
        if row["rank"] not in threads and row["rank"] not in recorded:
            graph.ranks.add(row["rank"])
            graph.unreported.discard(row["rank"])
            unread = NodeCondition(NodeState.UNREAD, Source.STACKS, "its stack could not be read")
            graph.conditions[program_of(row["rank"])] = [unread]


def _threads(store: Store) -> dict[int, list[_Thread]]:
    """The threads and children of each rank, as the last look showed them; waits for handles of transfers are such."""
    rows = store.query(
        "SELECT * FROM stack_threads WHERE rank IS NOT NULL "
        "QUALIFY snapshot = max(snapshot) OVER (PARTITION BY host, pid) ORDER BY rank, host, pid, tid"
    )
    frames = gathered(
        ((row["host"], row["pid"], row["tid"]), row)
        for row in store.query(
            "SELECT host, pid, tid, depth, file, module, line, function, is_user, code, variables FROM stack_frames "
            "QUALIFY snapshot = max(snapshot) OVER (PARTITION BY host, pid) ORDER BY host, pid, tid, depth"
        )
    )
    texts = ProgramTexts(store)
    views = {view.rank: view for view in with_transfers(rank_views(store), texts)}
    found: dict[int, list[_Thread]] = {}
    for row in rows:
        rank, view = row["rank"], views.get(row["rank"])
        if row["role"] == "rank" and row["is_main"] and view is not None and view.pid == row["pid"]:
            row = row | {"activity": view.activity, "operation": view.operation, "moved": view.moved}
        own = frames.get((row["host"], row["pid"], row["tid"]), [])
        found.setdefault(rank, []).append(_Thread(_node_of(row), row, own))
    return found


def _node_of(row: Mapping[str, Any]) -> Node:
    if row["role"] == "rank":
        name = "" if row["is_main"] else f"{row['thread'] or 'thread'} {row['tid']}"
        return program_of(row["rank"]) if row["is_main"] else Node(NodeKind.THREAD, name, row["rank"])
    return Node(
        NodeKind.CHILD, f"{row['role']} {row['pid']} {'' if row['is_main'] else row['tid']}".strip(), row["rank"]
    )


def _places(threads: Iterable[_Thread]) -> tuple[Location, ...]:
    return tuple(place for thread in threads if (place := thread.location()) is not None)


# --- within one rank


def _add_rank(graph: WaitGraph, rank: int, threads: Sequence[_Thread]) -> None:
    """The waits within a rank, and the state of what waits for nothing that is known."""
    own = [thread for thread in threads if thread.node.kind is NodeKind.THREAD]
    for thread in own:
        if thread.row["state"] in ("T", "t"):
            graph.note(thread.node, _condition(thread, NodeState.STOPPED))
            continue
        edges = list(_within(thread, own, threads))
        graph.edges += edges
        certain = any(edge.certainty is not Sure.POSSIBLE for edge in edges)
        if not thread.waits_for_peers and not certain:
            graph.note(thread.node, _condition(thread, NodeState.OUTSIDE))
    for child in threads:
        if child.node.kind is NodeKind.CHILD:
            graph.note(child.node, _condition(child, NodeState.OUTSIDE))


def _condition(thread: _Thread, state: NodeState) -> NodeCondition:
    says = thread.says()
    if thread.node.kind is NodeKind.CHILD:
        says = f"waits for its process {thread.row['pid']} ({thread.row['role'].replace('_', ' ')}), which {says}"
    elif thread.node.name:
        says = f"waits for its thread {thread.row['thread'] or thread.row['tid']}, which {says}"
    return NodeCondition(state, Source.STACKS, says, (thread.evidence(),), _places([thread]), thread.row["moved"])


def _within(thread: _Thread, own: Sequence[_Thread], everything: Sequence[_Thread]) -> Iterable[WaitEdge]:
    """What a thread waits for in its own process, and of processes that it started."""
    if thread.activity in _OWN_THREADS:
        others = [other for other in own if other is not thread and other.may_end_a_wait]
        return _to_threads(thread, others)
    if kind := _CHILDREN.get(thread.activity):
        role = (lambda row: row["role"] == CHILD) if kind is EdgeKind.CHILD else _is_busy_worker
        children = [each for each in everything if each.node.kind is NodeKind.CHILD and role(each.row)]
        return [_edge(thread, child, kind, Sure.INFERRED) for child in children]
    return []


def _is_busy_worker(row: Mapping[str, Any]) -> bool:
    return str(row["role"]).endswith("_worker") and row["is_main"] and row["activity"] != "worker_idle"


def _to_threads(thread: _Thread, others: Sequence[_Thread]) -> list[WaitEdge]:
    """The one that it must wait for; where several could end it, the one of them that waits for peers."""
    waiting = [other for other in others if other.waits_for_peers]
    chosen = others if len(others) == 1 else waiting if len(waiting) == 1 else []
    kind = _kind_of(thread)
    if chosen:
        return [_edge(thread, chosen[0], kind, Sure.INFERRED)]
    return [_edge(thread, other, kind, Sure.POSSIBLE) for other in others]


def _edge(thread: _Thread, other: _Thread, kind: EdgeKind, certainty: Sure) -> WaitEdge:
    return WaitEdge(thread.node, other.node, kind, Source.STACKS, certainty, thread.evidence(), thread.row["blocked_s"])


def _kind_of(thread: _Thread) -> EdgeKind:
    """How a thread waits for another of its process, by the library call that it is in, else by its line."""
    for frame in thread.frames:
        module, function = frame["module"] or "", str(frame["function"]).rpartition(".")[2]
        if module.endswith("queue.py") or re.search(r"concurrent/futures|multiprocessing/queues\.py", module):
            return EdgeKind.QUEUE
        if module.endswith("threading.py") and function in ("join", "_wait_for_tstate_lock"):
            return EdgeKind.JOIN
        if frame["is_user"]:
            break
    return EdgeKind.JOIN if ".join(" in (thread.row["user_source"] or "") else EdgeKind.LOCK


# --- between ranks


def _add_operations(graph: WaitGraph, threads: Mapping[int, Sequence[_Thread]], waiting: Set[int]) -> None:
    """Who is in which operation, and who is in it with no thread. `waiting`: the ranks whose waits count."""
    meeting: dict[tuple[str, str, str], list[_Thread]] = {}
    for mine in threads.values():
        for thread in mine:
            if thread.node.kind is NodeKind.THREAD and thread.waits_for_peers and thread.row["state"] not in ("T", "t"):
                key = (thread.activity, str(thread.row["operation"]), str(thread.row["user_stack"]))
                meeting.setdefault(key, []).append(thread)
    unsure = {rank for rank, mine in threads.items() if any(each.activity == "device_sync" for each in mine)}
    known = set(threads)
    if len(meeting) * len(known) > _MOST_EDGES:
        # In so many different places hardly anybody is awaited by all of them but who is in none.
        known -= {thread.node.rank for inside in meeting.values() for thread in inside}
    for (activity, *_), inside in sorted(meeting.items()):
        if not any(thread.node.rank in waiting for thread in inside) or any(thread.moved for thread in inside):
            continue  # what somebody got out of is no wait
        kind = {"p2p": EdgeKind.TRANSFER, "device_sync": EdgeKind.DEVICE}.get(activity, EdgeKind.COLLECTIVE)
        if kind is EdgeKind.COLLECTIVE:
            _add_meeting(graph, inside, waiting, known - unsure, known & unsure)
        else:
            for thread in inside:
                if thread.node.rank in waiting:
                    _add_own(graph, thread, kind, threads.keys())


def _add_meeting(
    graph: WaitGraph, inside: Sequence[_Thread], waiting: Set[int], sure: Set[int], unsure: Set[int]
) -> None:
    """`sure`: ranks whose stacks show what they are in; `unsure`: those of which only their device would."""
    there = {thread.node.rank for thread in inside}
    first = inside[0].row
    node = Node(NodeKind.OPERATION, f"{first['operation']} {first['user_stack']}")
    place = inside[0].location()
    words = f"{first['operation']}{f' at {place.short()}' if place else ''}"
    away = sorted((sure | unsure) - there)
    graph.operations[node] = Operation(
        words, EdgeKind.COLLECTIVE, Source.STACKS, complete=not away and not graph.absent
    )
    for thread in inside:
        if thread.node.rank in waiting:
            seen = thread.evidence(), thread.row["blocked_s"]
            graph.wait(WaitEdge(thread.node, node, EdgeKind.COLLECTIVE, Source.STACKS, Sure.SEEN, *seen))
    for rank in [*away, *sorted(graph.absent - there)]:
        certainty = Sure.POSSIBLE if rank in unsure | graph.absent else Sure.INFERRED
        graph.wait(WaitEdge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.STACKS, certainty))


def _add_own(graph: WaitGraph, thread: _Thread, kind: EdgeKind, ranks: Collection[int]) -> None:
    """A transfer, or a wait for the device: it is no meeting, and its other end is known from local variables only."""
    place = thread.location()
    words = f"{thread.row['operation'] or thread.activity}{f' at {place.short()}' if place else ''}"
    name = f"{thread.activity} {thread.node.rank} {thread.node.name}".strip()
    node = Node(NodeKind.OPERATION if kind is EdgeKind.TRANSFER else NodeKind.DEVICE, name)
    graph.operations[node] = Operation(words, kind, Source.STACKS)
    graph.wait(WaitEdge(thread.node, node, kind, Source.STACKS, evidence=thread.evidence()))
    if kind is not EdgeKind.TRANSFER:
        return
    peer = _peer_of(thread)
    if peer is not None and peer in set(ranks):
        graph.wait(WaitEdge(node, program_of(peer), kind, Source.STACKS, evidence=thread.evidence()))
        return
    if len(ranks) <= _MOST_PEERS:
        others = [rank for rank in ranks if rank != thread.node.rank]
        graph.edges += [WaitEdge(node, program_of(rank), kind, Source.STACKS, Sure.POSSIBLE) for rank in others]


def _peer_of(thread: _Thread) -> int | None:
    """The rank at the other end, if the frame of the transfer shows it and the group is the whole job."""
    for frame in thread.frames:
        if frame["function"] in _TRANSFERS and frame["variables"]:
            told = json.loads(frame["variables"])
            if str(told.get("group", "None")) != "None":
                return None
            for name in _PEERS:
                if str(told.get(name, "")).isdecimal():
                    return int(told[name])
    return None
