"""Finds the peer of a thread in a send or receive, from its variables, the program's source, or where peers are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set

from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.collectives.stacks.main_threads import UserFrame
from ddx_tools.analysis.program.transfer_peers import peers_of
from ddx_tools.analysis.wait_graph.model import Sure, program_of
from ddx_tools.analysis.wait_graph.threads import Thread
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Location
from ddx_tools.model.grouping import gathered

_MOST_PEERS = 64
"""If a transfer's peer is unknown, candidates are listed in jobs of up to this many ranks; beyond, they say nothing."""
_PEERS = ("dst", "src", "group_dst", "group_src")
_Way = tuple[UserFrame, ...]
_TRANSFERS = ("send", "recv", "isend", "irecv")


class Peers:
    """The partner ranks of the transfers that a job's threads are in."""

    def __init__(self, store: Store, threads: Mapping[int, Sequence[Thread]]) -> None:
        sizes = store.query("SELECT max(world_size) AS world FROM ranks") if store.holds_any(("ranks",)) else []
        self._ranks = set(threads)
        self._world = max([1 + max(self._ranks, default=0), *(row["world"] or 0 for row in sizes)])
        self._texts = ProgramTexts(store)
        self._exchanges = _exchanges(threads, self._world)
        self._meeting = {
            rank: thread.user_stack
            for rank, mine in threads.items()
            for thread in mine
            if thread.node == program_of(rank) and thread.activity == "collective"
        }

    def of(self, thread: Thread) -> tuple[Sure, Set[int]]:
        """The ranks that a thread in a transfer waits for, and how sure that is; several if it may be any of them."""
        if (told := _by_variables(thread)) is not None and told in self._ranks:
            return Sure.SEEN, {told}
        rank = thread.node.rank
        known = peers_of(self._texts.of, thread.user_stack, str(thread.row["operation"]), rank, self._world)
        if len(known) > 1:
            known -= self._passed(thread, known)
        if len(known) == 1:
            return Sure.INFERRED, known
        elsewhere = self._exchanges.get(thread.user_stack[-1:], {})
        there = elsewhere.get(thread.user_stack, set())
        if len(there) > 1 and (away := set().union(*elsewhere.values()) - there) and len(away) < len(there):
            return Sure.INFERRED, away
        others = known or (self._ranks - {rank} if len(self._ranks) <= _MOST_PEERS else set())
        return Sure.POSSIBLE, others & self._ranks

    def _passed(self, thread: Thread, ranks: Set[int]) -> Set[int]:
        """Of the given ranks, those that have already passed the call a thread is in, and wait after it."""
        behind = {rank: self._meeting[rank] for rank in ranks & self._meeting.keys()}
        return {rank for rank, stack in behind.items() if self._texts.has_passed(stack, thread.user_stack)}

    def have_gone_past(self, thread: Thread, rank: int) -> bool:
        """Whether a rank waiting in a collective is in the same round as a thread in a transfer, and past the transfer.

        A thread before the collective has not entered it in this round, and the other rank waits there for this round.
        """
        meeting = self._meeting.get(rank)
        return meeting is not None and self._texts.is_before(thread.user_stack, meeting)

    def way(self, thread: Thread) -> Location | None:
        """Where a thread's call path to its transfer diverges from the others'; None if it does not."""
        ways = list(self._exchanges.get(thread.user_stack[-1:], {}))
        for depth, frame in enumerate(thread.user_stack):
            if any(way[depth : depth + 1] != (frame,) for way in ways):
                return Location(file=frame[0], line=frame[1], function=frame[2])
        return None


def _exchanges(threads: Mapping[int, Sequence[Thread]], world: int) -> dict[_Way, dict[_Way, set[int]]]:
    """For each line of transfers that all ranks of a job are in: which ranks reached it on which call path.

    A function in which all ranks send and receive is a meeting: ranks in one round of it wait for those in another.
    """
    transfers = [each for mine in threads.values() for each in mine if each.activity == "p2p" and each.user_stack]
    found: dict[_Way, dict[_Way, set[int]]] = {}
    for line, inside in gathered((each.user_stack[-1:], each) for each in transfers).items():
        if len({each.node.rank for each in inside}) == world:
            ways = gathered((each.user_stack, each.node.rank) for each in inside)
            found[line] = {way: set(ranks) for way, ranks in ways.items()}
    return found


def _by_variables(thread: Thread) -> int | None:
    """The rank at the other end, if the transfer's frame shows it and the group is the whole job."""
    for frame in thread.frames:
        if frame["function"] in _TRANSFERS and frame["variables"]:
            told = json.loads(frame["variables"])
            if str(told.get("group", "None")) != "None":
                return None
            for name in _PEERS:
                if str(told.get(name, "")).isdecimal():
                    return int(told[name])
    return None
