"""Where waiting ends: graphs made by hand, each beside one in which nobody is to blame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from made_findings import seen

from ddx_tools.analysis.wait_graph.from_logs import add_ends, add_logs
from ddx_tools.analysis.wait_graph.from_processes import add_absent
from ddx_tools.analysis.wait_graph.model import (
    CallMismatch,
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
from ddx_tools.analysis.wait_graph.roots import Roots, chain_of, find_roots
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import SuspectEvent


class Made:
    """A graph that is made operation by operation."""

    def __init__(self, ranks: int) -> None:
        self.graph = WaitGraph(ranks=set(range(ranks)))

    def operation(
        self, name: str, inside: Iterable[int], away: Iterable[int] = (), *, unknown: Iterable[int] = ()
    ) -> Made:
        """Ranks in an operation, those that are not, and those of which nothing tells whether they are."""
        node = Node(NodeKind.OPERATION, name)
        inside, away, unknown = list(inside), list(away), list(unknown)
        self.graph.operations[node] = Operation(name, EdgeKind.COLLECTIVE, Source.RECORDS, complete=not away + unknown)
        for rank in inside:
            self.graph.wait(WaitEdge(program_of(rank), node, EdgeKind.COLLECTIVE, Source.RECORDS))
        for ranks, certainty in ((away, Sure.SEEN), (unknown, Sure.POSSIBLE)):
            for rank in ranks:
                self.graph.wait(WaitEdge(node, program_of(rank), EdgeKind.COLLECTIVE, Source.RECORDS, certainty))
        return self

    def is_(self, state: NodeState, *ranks: int) -> Made:
        """What is known of ranks."""
        for rank in ranks:
            self.graph.note(program_of(rank), NodeCondition(state, Source.RECORDS))
            if state is NodeState.UNKNOWN:
                self.graph.unreported.add(rank)
        return self


def test_waiting_leads_through_others_to_who_waits_for_nobody() -> None:
    made = Made(5).operation("tp", [0], [1]).operation("dp", [1, 2, 3], [4]).is_(NodeState.OUTSIDE, 4)
    roots = find_roots(made.graph)
    assert roots.clear and roots.ranks == (4,) and roots.victims == (0, 1, 2, 3)
    assert roots.roots[0].event is SuspectEvent.ABSENT
    assert chain_of(made.graph, roots)[0] == "Ranks 1-3 wait in dp for rank 4."


def test_an_operation_that_all_members_are_in_leads_to_nobody() -> None:
    roots = find_roots(Made(3).operation("dp", range(3)).graph)
    assert roots.ranks == () and not roots.clear


def test_nobody_who_waits_is_no_trouble() -> None:
    roots = find_roots(Made(3).is_(NodeState.OUTSIDE, 0, 1, 2).graph)
    assert (roots.ranks, roots.victims, roots.open) == ((), (), "")


def test_of_a_circle_the_few_that_stay_away_from_where_many_are_are_the_root() -> None:
    made = Made(4).operation("barrier", [0, 1, 3], [2]).operation("backward", [2], [0, 1, 3])
    roots = find_roots(made.graph)
    assert roots.clear and roots.ranks == (2,) and roots.circle == (0, 1, 2, 3)


def test_a_circle_of_two_equal_sides_is_told_as_a_circle() -> None:
    roots = find_roots(Made(2).operation("a", [0], [1]).operation("b", [1], [0]).graph)
    assert roots.ranks == () and roots.circle == (0, 1) and "wait for each other" in roots.open


def test_who_differs_in_an_operation_that_nobody_gets_out_of_is_the_root() -> None:
    made = Made(4).operation("exchange", range(4))
    (node,) = made.graph.operations
    differing = CallMismatch("shape", node, (3,), True, Source.RECORDS, "rank 3 brings more")
    made.graph.mismatches.append(differing)
    roots = find_roots(made.graph)
    assert roots.ranks == (3,) and roots.roots[0].mismatch is differing
    made.graph.mismatches[0] = CallMismatch("shape", node, (0, 1, 2, 3), False, Source.RECORDS)
    assert find_roots(made.graph).ranks == ()


def test_most_of_the_ranks_are_never_to_blame() -> None:
    made = Made(4).operation("dp", [0], [1, 2, 3]).is_(NodeState.OUTSIDE, 1, 2, 3)
    assert find_roots(made.graph).ranks == ()


# --- ranks of which nothing tells


def _host_gone(*, also_silent: tuple[int, ...] = (), unread: tuple[int, ...] = ()) -> Made:
    """Hosts of four ranks; ranks 8-11 left nothing, and each other rank waits for the one of them in its place."""
    made = Made(16)
    made.graph.hosts = {rank: f"node-{rank // 4}" for rank in range(16) if rank not in range(8, 12)}
    for place in range(4):
        group = [place, place + 4, place + 8, place + 12]
        gone = [rank for rank in group if rank in range(8, 12) or rank in also_silent + unread]
        made.operation(f"dp {place}", [rank for rank in group if rank not in gone], unknown=gone)
    return made.is_(NodeState.UNKNOWN, *range(8, 12), *also_silent).is_(NodeState.UNREAD, *unread)


@pytest.mark.parametrize("unread", [(), (13,)])
def test_ranks_that_share_a_host_are_told_as_the_host(unread: tuple[int, ...]) -> None:
    roots = find_roots(_host_gone(unread=unread).graph)
    assert roots.clear and roots.ranks == (8, 9, 10, 11)


def test_of_two_silent_hosts_nobody_is_named() -> None:
    roots = find_roots(_host_gone(also_silent=(12, 13, 14, 15)).graph)
    assert not roots.clear


def test_one_silent_rank_explains_the_waits_unless_others_are_silent_too() -> None:
    made = Made(6).operation("dp", range(5), unknown=[5]).is_(NodeState.UNKNOWN, 5)
    assert find_roots(made.graph).clear and find_roots(made.graph).ranks == (5,)
    made = Made(7).operation("dp", range(5), unknown=[5]).is_(NodeState.UNKNOWN, 5, 6)
    assert not find_roots(made.graph).clear


def test_a_rank_that_could_not_be_read_is_not_taken_for_dead() -> None:
    roots = find_roots(Made(4).operation("dp", [0, 1, 2], unknown=[3]).is_(NodeState.UNREAD, 3).graph)
    assert not roots.clear


# --- ends, and hosts that do not answer


def test_who_ended_of_itself_waits_for_nobody_whatever_it_was_in() -> None:
    made = Made(4).operation("dp", [0, 1, 2, 3][:3], [3]).is_(NodeState.OUTSIDE, 3)
    made.operation("tp", [3], [0])
    add_ends(made.graph, [seen("rank.raised", 3, independent=True)])
    roots = find_roots(made.graph)
    assert roots.ranks == (3,) and roots.roots[0].event is SuspectEvent.ENDED


def test_who_ended_as_a_consequence_is_no_root() -> None:
    made = Made(3).operation("dp", [0, 2], [1]).is_(NodeState.OUTSIDE, 1)
    add_ends(made.graph, [seen("rank.raised", 0, independent=False)])
    assert find_roots(made.graph).ranks == (1,)


def test_a_process_that_is_gone_is_the_root() -> None:
    made = Made(3).operation("dp", [0, 2], [1])
    add_ends(made.graph, [seen("rank.process_gone", 1)])
    assert find_roots(made.graph).ranks == (1,)


def test_reports_of_who_never_entered_make_waits_where_nothing_nearer_tells() -> None:
    reported = seen("collective.missing_ranks", 2, missing=[2], waiting=[0, 1], tie=False, basis="log")
    alone = WaitGraph()
    add_logs(alone, [reported])
    assert find_roots(alone).ranks == (2,)
    nearer = Made(3).operation("dp", [0, 2], [1]).is_(NodeState.OUTSIDE, 1)
    add_logs(nearer.graph, [reported])
    assert find_roots(nearer.graph).ranks == (1,)


@pytest.mark.parametrize(("state", "absent"), [("unreachable", {2, 3}), ("answered", set())])
def test_ranks_of_the_one_host_that_does_not_answer_are_absent(state: str, absent: set[int]) -> None:
    with Store() as store:
        ranks: list[dict[str, Any]] = [{"host": "a", "role": "rank", "rank": rank, "world_size": 4} for rank in (0, 1)]
        hosts: list[dict[str, Any]] = [
            {"target": "a", "host": "a", "state": "answered"},
            {"target": "b", "host": None, "state": state},
        ]
        store.insert({"ranks": ranks, "asked_hosts": hosts})
        graph = WaitGraph()
        add_absent(graph, store)
    assert graph.absent == absent
    assert {graph.hosts[rank] for rank in absent} <= {"b"}


# --- ranks that hold each other up by themselves


def test_threads_of_one_rank_that_wait_for_each_other_make_it_the_root() -> None:
    made = Made(4).operation("dp", [0, 1, 2], [3])
    thread = Node(NodeKind.THREAD, "metrics 7", 3)
    for one, other in ((program_of(3), thread), (thread, program_of(3))):
        made.graph.wait(WaitEdge(one, other, EdgeKind.LOCK, Source.STACKS, Sure.INFERRED))
    assert find_roots(made.graph).clear and find_roots(made.graph).ranks == (3,)
    ended = Made(4).operation("dp", [0, 1, 2], [3]).is_(NodeState.OUTSIDE, 3)
    assert find_roots(ended.graph).ranks == (3,)


def test_a_few_ranks_that_send_to_each_other_hold_up_all_others_and_all_ranks_in_a_ring_nobody_alone() -> None:
    def ring(world: int) -> Roots:
        made = Made(world)
        for rank, peer in ((0, 1), (1, 0)):
            node = Node(NodeKind.OPERATION, f"send {rank}")
            made.graph.operations[node] = Operation("send", EdgeKind.TRANSFER, Source.STACKS)
            made.graph.wait(WaitEdge(program_of(rank), node, EdgeKind.TRANSFER, Source.STACKS))
            made.graph.wait(WaitEdge(node, program_of(peer), EdgeKind.TRANSFER, Source.STACKS))
        return find_roots(made.operation("dp", range(2, world), [0, 1]).graph)

    assert ring(6).clear and ring(6).ranks == (0, 1) and ring(6).victims == (2, 3, 4, 5)
    assert not ring(3).clear and ring(3).circle == (0, 1)


def test_who_ended_of_itself_is_the_root_also_where_nobody_is_seen_to_wait() -> None:
    graph = WaitGraph(ranks={0, 1, 2}, gone={1})
    add_ends(graph, [seen("rank.killed", 1, independent=True)])
    assert find_roots(graph).clear and find_roots(graph).ranks == (1,)
    assert find_roots(WaitGraph(ranks={0, 1, 2})).ranks == ()


def test_who_waits_for_one_of_several_waits_for_the_root_among_them() -> None:
    def recv(*, outside: bool) -> Roots:
        made = Made(4).operation("broadcast", [1], [0, 2])
        node = Node(NodeKind.OPERATION, "recv 0")
        made.graph.operations[node] = Operation("recv", EdgeKind.TRANSFER, Source.STACKS)
        made.graph.wait(WaitEdge(program_of(0), node, EdgeKind.TRANSFER, Source.STACKS))
        for peer in (1, 2, 3):
            made.graph.wait(WaitEdge(node, program_of(peer), EdgeKind.TRANSFER, Source.STACKS, Sure.POSSIBLE))
        return find_roots((made.is_(NodeState.OUTSIDE, 2) if outside else made).graph)

    assert recv(outside=True).clear and recv(outside=True).ranks == (2,)
    assert not recv(outside=False).clear and recv(outside=False).ranks == ()
