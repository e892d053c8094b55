"""Adds waits from stacks: what each thread of each rank waits for, in its own process and from its peers.

A stack does not name the process group. Threads in one operation, called from one place, are assumed to meet there
with all other ranks; a rank with no thread in it is awaited there. A main thread in `join()`, `Event.wait()`,
`Queue.get()` or a lock waits for a thread of its own process that could end the wait. `transfer_ends` finds a
transfer's peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.collectives.stacks.main_threads import CHILD, RankView, UserFrame, rank_views
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
from ddx_tools.analysis.wait_graph.polls import add_polls
from ddx_tools.analysis.wait_graph.threads import Thread
from ddx_tools.analysis.wait_graph.transfer_ends import Peers
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Location
from ddx_tools.model.grouping import gathered

_OWN_THREADS = ("lock_wait", "shutdown")
"""Waiting activities that another thread of the same process ends."""
_CHILDREN: Mapping[str, EdgeKind] = {
    "data_wait": EdgeKind.QUEUE,
    "subprocess_wait": EdgeKind.CHILD,
    "child_wait": EdgeKind.CHILD,
}
_MOST_EDGES = 500_000
_MOST_COMPARED = 16


def add_stacks(graph: WaitGraph, store: Store) -> None:
    """Add the waits shown by stacks, except for ranks whose flight record shows their current call."""
    if not store.holds_any(("stack_threads", "unread")):
        return
    texts = ProgramTexts(store)
    views = {view.rank: view for view in with_transfers(rank_views(store), texts)}
    threads = _threads(store, views)
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
                # A record with nothing pending may miss an operation that the backend does not record.
                graph.conditions.pop(main.node, None)
    alone = {rank: mine for rank, mine in threads.items() if rank not in recorded}
    for rank in sorted(alone):
        _add_rank(graph, rank, alone[rank])
    _add_operations(graph, threads, alone.keys(), Peers(store, threads), texts)
    _note_open_groups(graph, views, texts)
    add_polls(graph, alone, texts)
    for row in store.query("SELECT DISTINCT rank FROM unread WHERE rank IS NOT NULL"):
        if row["rank"] not in threads and row["rank"] not in recorded:
            graph.ranks.add(row["rank"])
            graph.unreported.discard(row["rank"])
            unread = NodeCondition(NodeState.UNREAD, Source.STACKS, "its stack could not be read")
            graph.conditions[program_of(row["rank"])] = [unread]


def add_held_locks(graph: WaitGraph, findings: Sequence[Finding]) -> None:
    """For ranks whose main thread waits for the GIL, or is blocked with it, add which thread holds it."""
    for finding in findings:
        if finding.code == "rank.gil_held" and len(finding.ranks) == 1 and finding.ranks[0] in graph.doing:
            place = f" at {finding.locations[0].short()}" if finding.locations else ""
            says = f"waits for the GIL, which its thread {finding.attributes.get('thread')} holds{place}"
            if finding.attributes.get("by_main"):
                says = f"is blocked{place} and keeps the GIL"
            held = replace(
                graph.doing[finding.ranks[0]], says=says, locations=tuple(finding.locations[:1]), moves=False
            )
            graph.doing[finding.ranks[0]] = held


def _threads(store: Store, views: Mapping[int, RankView]) -> dict[int, list[Thread]]:
    """The threads and child processes of each rank in the last sample; waits on transfer handles count as transfers."""
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
    found: dict[int, list[Thread]] = {}
    for row in rows:
        rank, view = row["rank"], views.get(row["rank"])
        if row["role"] == "rank" and row["is_main"] and view is not None and view.pid == row["pid"]:
            seen = {"activity": view.activity, "operation": view.operation, "moved": view.moved, "still_s": view.wait_s}
            row = row | seen
        own = frames.get((row["host"], row["pid"], row["tid"]), [])
        found.setdefault(rank, []).append(Thread(_node_of(row), row, own))
    return found


def _node_of(row: Mapping[str, Any]) -> Node:
    if row["role"] == "rank":
        name = "" if row["is_main"] else f"{row['thread'] or 'thread'} {row['tid']}"
        return program_of(row["rank"]) if row["is_main"] else Node(NodeKind.THREAD, name, row["rank"])
    return Node(
        NodeKind.CHILD, f"{row['role']} {row['pid']} {'' if row['is_main'] else row['tid']}".strip(), row["rank"]
    )


def _places(threads: Iterable[Thread]) -> tuple[Location, ...]:
    return tuple(place for thread in threads if (place := thread.location()) is not None)


# --- within one rank


def _add_rank(graph: WaitGraph, rank: int, threads: Sequence[Thread]) -> None:
    """Add the waits within a rank, and the state of threads that wait for nothing known."""
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


def _condition(thread: Thread, state: NodeState) -> NodeCondition:
    says = thread.says()
    if thread.node.kind is NodeKind.CHILD:
        says = f"waits for its process {thread.row['pid']} ({thread.row['role'].replace('_', ' ')}), which {says}"
    elif thread.node.name:
        says = f"waits for its thread {thread.row['thread'] or thread.row['tid']}, which {says}"
    return NodeCondition(state, Source.STACKS, says, (thread.evidence(),), _places([thread]), thread.works)


def _within(thread: Thread, own: Sequence[Thread], everything: Sequence[Thread]) -> Iterable[WaitEdge]:
    """Edges from a thread to what it waits for in its own process and in processes that it started."""
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


def _to_threads(thread: Thread, others: Sequence[Thread]) -> list[WaitEdge]:
    """The edge to the only thread that could end the wait; of several, to the one that waits for peers."""
    waiting = [other for other in others if other.waits_for_peers]
    chosen = others if len(others) == 1 else waiting if len(waiting) == 1 else []
    kind = _kind_of(thread)
    if chosen:
        return [_edge(thread, chosen[0], kind, Sure.INFERRED)]
    return [_edge(thread, other, kind, Sure.POSSIBLE) for other in others]


def _edge(thread: Thread, other: Thread, kind: EdgeKind, certainty: Sure) -> WaitEdge:
    return WaitEdge(thread.node, other.node, kind, Source.STACKS, certainty, thread.evidence(), thread.row["blocked_s"])


def _kind_of(thread: Thread) -> EdgeKind:
    """How a thread waits for another one in its process, judged by its library call or else by its source line."""
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


def _add_operations(
    graph: WaitGraph,
    threads: Mapping[int, Sequence[Thread]],
    waiting: Set[int],
    peers: Peers,
    texts: ProgramTexts,
) -> None:
    """Add who is in which operation, and who has no thread in it. `waiting`: the ranks whose waits count."""
    meeting: dict[tuple[str, str, str], list[Thread]] = {}
    for mine in threads.values():
        for thread in mine:
            if thread.node.kind is NodeKind.THREAD and thread.waits_for_peers and thread.row["state"] not in ("T", "t"):
                key = (thread.activity, str(thread.row["operation"]), str(thread.row["user_stack"]))
                meeting.setdefault(key, []).append(thread)
    unsure = {rank for rank, mine in threads.items() if any(each.activity == "device_sync" for each in mine)}
    known = set(threads)
    if len(meeting) * len(known) > _MOST_EDGES:
        # With this many different places, only ranks in none of them are likely to be awaited by all.
        known -= {thread.node.rank for inside in meeting.values() for thread in inside}
    places: dict[Node, tuple[UserFrame, ...]] = {}
    for (activity, *_), inside in sorted(meeting.items()):
        if not any(thread.node.rank in waiting for thread in inside) or any(thread.moved for thread in inside):
            continue  # an operation that some rank has left is no wait
        kind = {"p2p": EdgeKind.TRANSFER, "device_sync": EdgeKind.DEVICE}.get(activity, EdgeKind.COLLECTIVE)
        if kind is EdgeKind.COLLECTIVE:
            node = _add_meeting(graph, inside, waiting, known - unsure, known & unsure)
            places[node] = inside[0].user_stack
        else:
            for thread in inside:
                if thread.node.rank in waiting:
                    _add_own(graph, thread, kind, peers)
    if len(places) <= _MOST_COMPARED:
        pairs = ((one, other) for one in places for other in places if one != other)
        graph.precedes |= {(one, other) for one, other in pairs if texts.comes_to(places[one], places[other])}


def _add_meeting(
    graph: WaitGraph, inside: Sequence[Thread], waiting: Set[int], sure: Set[int], unsure: Set[int]
) -> Node:
    """Add an operation in which ranks meet. `sure`: stacks show what they are in; `unsure`: only a device would."""
    there = {thread.node.rank for thread in inside}
    first = inside[0].row
    node = Node(NodeKind.OPERATION, f"{first['operation']} {first['user_stack']}")
    place = inside[0].location()
    words = f"{first['operation']}{f' at {place.short()}' if place else ''}"
    away = sorted((sure | unsure | graph.gone) - there)
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
    return node


def _note_open_groups(graph: WaitGraph, views: Mapping[int, RankView], texts: ProgramTexts) -> None:
    """Mark the operations whose members the program leaves open: each alone, or next to the one most ranks are in."""
    there = {
        node: [views[each.rank] for each in sorted(waiters) if each.rank in views and each == program_of(each.rank)]
        for node, waiters in graph.in_operation().items()
        if graph.operations[node].source is Source.STACKS and graph.operations[node].kind is EdgeKind.COLLECTIVE
    }
    usual = max(there.values(), key=len, default=[])
    for node, inside in there.items():
        if inside and inside is not usual and texts.leaves_members_open(inside[0], usual[0]):
            graph.operations[node] = replace(graph.operations[node], open_members=True)
        if inside and texts.passes_several_groups(inside[0]):
            graph.operations[node] = replace(graph.operations[node], several_groups=True)


def _add_own(graph: WaitGraph, thread: Thread, kind: EdgeKind, peers: Peers) -> None:
    """Add a transfer or a wait for the device; neither is a meeting of ranks."""
    place, way = thread.location(), peers.way(thread)
    words = f"{thread.row['operation'] or thread.activity}{f' at {place.short()}' if place else ''}"
    words += f" (from {way.short()})" if way else ""
    name = f"{thread.activity} {thread.node.rank} {thread.node.name}".strip()
    node = Node(NodeKind.OPERATION if kind is EdgeKind.TRANSFER else NodeKind.DEVICE, name)
    graph.operations[node] = Operation(words, kind, Source.STACKS)
    seen = thread.evidence(), thread.row["blocked_s"]
    graph.wait(WaitEdge(thread.node, node, kind, Source.STACKS, Sure.SEEN, *seen))
    if kind is EdgeKind.TRANSFER:
        certainty, awaited = peers.of(thread)
        if certainty is not Sure.POSSIBLE and all(peers.have_gone_past(thread, rank) for rank in awaited):
            graph.left_behind.add(node)
        for rank in sorted(awaited):
            graph.wait(WaitEdge(node, program_of(rank), kind, Source.STACKS, certainty, seen[0]))
