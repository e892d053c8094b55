"""The state of each rank for the grid, and sets of ranks that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddx_tools.analysis.wait_graph.model import NodeState, Source, WaitGraph, program_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.model.diagnosis import Diagnosis, SuspectEvent, Verdict

MOST_RANKS = 1 << 17
"""A world size comes from the job as well, so it is bounded."""
_SHOWN_ALONE = 64
"""Up to this many ranks, each has its own panel; beyond that, ranks that are alike share one."""
_MOST_KINDS = 48


class RankState(StrEnum):
    """The state that a grid cell shows, worst first: the worst state among several ranks stands for them."""

    ENDED = "ended"
    STOPPED = "stopped"
    APART = "apart"
    LATE = "late"
    WAITS = "waits"
    UNKNOWN = "unknown"
    SEEN = "seen"


STATE_WORDS = {
    RankState.ENDED: ("✕", "ended or died"),
    RankState.STOPPED: ("■", "stopped"),
    RankState.APART: ("◆", "not where its peers are"),
    RankState.LATE: ("◐", "late"),
    RankState.WAITS: ("●", "blocked"),
    RankState.UNKNOWN: ("?", "nothing known"),
    RankState.SEEN: ("▲", "nothing wrong seen"),
}
"""The symbol of each state, so that nobody depends on colours, and its wording."""

_OF_NODES = {
    NodeState.ENDED: RankState.ENDED,
    NodeState.STOPPED: RankState.STOPPED,
    NodeState.OUTSIDE: RankState.APART,
    NodeState.DEVICE_BEHIND: RankState.APART,
    NodeState.STANDS_STILL: RankState.APART,
    NodeState.ELSEWHERE: RankState.APART,
}
_ALIVE_APART = frozenset({RankState.UNKNOWN, RankState.SEEN})


@dataclass(frozen=True)
class RankKind:
    """Ranks that are alike in everything the page shows; the first stands for all."""

    ranks: tuple[int, ...]
    state: RankState
    blamed: bool

    @property
    def first(self) -> int:
        """The rank that represents all ranks of this kind: its stack and log lines are shown for them."""
        return self.ranks[0]


@dataclass(frozen=True)
class RankPicture:
    """Every rank of a job with its state, and the kinds of ranks."""

    states: Mapping[int, RankState] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    blamed: frozenset[int] = frozenset()
    kinds: tuple[RankKind, ...] = ()
    left_out: int = 0
    """The number of ranks whose kind has no panel."""

    def kind_of(self) -> dict[int, int]:
        """Map each rank to the index of its kind in `kinds`.

        Ranks whose kind was left out of `kinds` are not in the map.
        """
        return {rank: place for place, kind in enumerate(self.kinds) for rank in kind.ranks}


def rank_picture(store: Store, found: Investigation, said: Diagnosis) -> RankPicture:
    """Determine for each rank the state that the report shows (waits, late, stopped, ended, …).

    The states come from the wait graph in `found`, the ranks that the answer `said` names, and the store's rows. Ranks
    that are alike are also grouped into kinds; the result is empty if no rank is known.
    """
    graph = found.waits.graph if found.waits else WaitGraph()
    blamed = frozenset(said.culprits.ranks) | {rank for suspect in said.suspects for rank in suspect.ranks}
    seen = _ranks_of_rows(store)
    size = min(max((row["size"] or 0 for row in store.query(_WORLD)), default=0), MOST_RANKS)
    everybody = sorted({*range(size), *seen, *graph.ranks, *blamed, *said.victims.ranks, *found.seats})[:MOST_RANKS]
    stopped = {row["rank"] for row in store.query(_STOPPED)}
    exited = {row["rank"] for row in store.query(_EXITED)}
    late = {rank for suspect in said.suspects if suspect.event is SuspectEvent.LATE for rank in suspect.ranks}
    waiting = {edge.waiter.rank for edge in graph.edges} | set(said.victims.ranks)
    moves = said.verdict is Verdict.HEALTHY or not waiting
    states: dict[int, RankState] = {}
    for rank in everybody:
        state = _state(graph, rank, waiting)
        # If no rank waits, each is doing its own work.
        state = RankState.SEEN if moves and state is RankState.APART else state
        if state in _ALIVE_APART:
            silent = rank not in seen or rank in graph.absent
            state = RankState.APART if rank in graph.doing and rank in blamed else state
            state = RankState.UNKNOWN if silent and state is not RankState.APART else state
            state = RankState.SEEN if state is RankState.UNKNOWN and not silent else state
        state = RankState.LATE if rank in late and state is RankState.SEEN else state
        state = RankState.ENDED if rank in exited and state is RankState.SEEN else state
        states[rank] = RankState.STOPPED if rank in stopped and state is not RankState.ENDED else state
    hosts = dict(graph.hosts) | {rank: seat.host for rank, seat in found.seats.items() if seat.host}
    kinds = _kinds(store, states, blamed)
    left_out = sum(len(kind.ranks) for kind in kinds[_MOST_KINDS:])
    return RankPicture(states, hosts, blamed, tuple(kinds[:_MOST_KINDS]), left_out)


def _state(graph: WaitGraph, rank: int, waiting: set[int]) -> RankState:
    """The worst state that any source reports for a rank. Seeing it wait outweighs not seeing it."""
    known = graph.conditions.get(program_of(rank), [])
    told = {_OF_NODES[one.state] for one in known if one.state in _OF_NODES and one.source is not Source.LOGS}
    told |= {RankState.ENDED for one in known if one.state is NodeState.ENDED}
    for state in (RankState.ENDED, RankState.STOPPED, RankState.APART):
        if state in told:
            return state
    return RankState.WAITS if rank in waiting else RankState.UNKNOWN if known else RankState.SEEN


_WORLD = """
SELECT max(world_size) AS size FROM ranks UNION ALL SELECT max(world_size) FROM fr_dumps
UNION ALL SELECT max(len(members)) FROM fr_groups
"""
_STOPPED = "SELECT DISTINCT rank FROM ranks WHERE role = 'rank' AND state IN ('T', 't') AND rank IS NOT NULL"
_EXITED = """
SELECT DISTINCT rank FROM log_events WHERE kind IN ('exit', 'failure_summary') AND NOT coalesce(superseded, false)
"""
_SEEN = """
SELECT DISTINCT rank FROM (
    SELECT rank FROM ranks WHERE role = 'rank' UNION ALL SELECT rank FROM stack_threads
    UNION ALL SELECT rank FROM fr_dumps UNION ALL SELECT rank FROM log_events
    UNION ALL SELECT rank FROM trace_ranks UNION ALL SELECT rank FROM fingerprints
    UNION ALL SELECT rank FROM memory_series
) WHERE rank IS NOT NULL AND rank >= 0
"""


def _ranks_of_rows(store: Store) -> set[int]:
    return {row["rank"] for row in store.query(_SEEN)}


_OF_STACKS = """
SELECT rank, string_agg(DISTINCT coalesce(frames_key, activity), ' ' ORDER BY coalesce(frames_key, activity)) AS told
FROM stack_threads WHERE is_main AND role = 'rank' AND rank IS NOT NULL
GROUP BY rank
"""
_OF_RECORDS = """
SELECT rank, string_agg(told, ' ' ORDER BY told) AS told FROM (
    SELECT d.rank, concat_ws(' ', c.op, min(e.seq) FILTER (WHERE NOT e.done), max(e.seq)) AS told
    FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN fr_dumps d USING (dump)
    JOIN fr_calls c USING (call) JOIN fr_groups g USING (group_id)
    WHERE d.rank IS NOT NULL GROUP BY d.rank, coalesce(g.description, g.name), c.op
) GROUP BY rank
"""
_OF_LOGS = """
SELECT rank, string_agg(DISTINCT concat_ws(' ', kind, code), ' ' ORDER BY concat_ws(' ', kind, code)) AS told
FROM log_events WHERE rank IS NOT NULL AND kind NOT IN ('step', 'value') GROUP BY rank
"""


def _kinds(store: Store, states: Mapping[int, RankState], blamed: Iterable[int]) -> list[RankKind]:
    """Group ranks by what is reported about them: blamed ranks first, then the rarer kinds."""
    accused = set(blamed)
    told: dict[int, list[str]] = defaultdict(list)
    if len(states) > _SHOWN_ALONE:
        for query in (_OF_STACKS, _OF_RECORDS, _OF_LOGS):
            for row in store.query(query):
                told[row["rank"]].append(row["told"] or "")
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, state in states.items():
        # If there are few ranks, each is its own kind.
        key = (rank,) if len(states) <= _SHOWN_ALONE else (state, rank in accused, *told[rank])
        alike[key].append(rank)
    kinds = [RankKind(tuple(ranks), states[ranks[0]], ranks[0] in accused) for ranks in alike.values()]
    return sorted(kinds, key=lambda kind: (not kind.blamed, len(kind.ranks), kind.first))
