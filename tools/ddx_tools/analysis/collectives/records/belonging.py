"""Whether the records of several ranks come from one run of one job: by its members, and by when and what they called.

Where two records of one group share no number, their last calls are compared: in one run, ring buffers that overlap in
time also overlap in numbers. Host clocks differ by seconds, wrong ones by minutes. Records that are hours apart are
from another run, or copies. Records that are minutes apart are compared only if a wrong clock explains it: most
collectives that both sides finished are the same operations, at one constant distance; and the record does not end
before what its peers finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from ddx_tools.analysis.collectives.records.attempts import LIVE
from ddx_tools.analysis.ranks.first_calls import is_beyond_zones
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.grouping import gathered

_NS = 1_000_000_000
_NS_PER_HOUR = 3600 * _NS
_APART_NS = 3 * _NS_PER_HOUR
"""No rank waits this long in one collective for its peers, and no clock is off by this much."""
_WRONG_NS = 900 * _NS
"""Clocks are seldom off by more than this, except by whole half hours. An earlier attempt makes the same calls, too."""
_CLOCKS_NS = 60 * _NS
"""Ranks of one run call the same collective within this period, unless the clock of one is wrong."""
_WAIT_NS = 600 * _NS
"""NCCL's default timeout: no rank waits longer than this for peers to make their first call."""
_MANY_CALLS = 16
"""Ranks of one moment differ by fewer collectives; no ring buffer is configured with fewer entries."""
_FEW_OF = 4
"""If more than a quarter of the records end early, the job went on while they were taken one after the other."""
_STEADY_NS = 5 * _NS
"""All members see the end of a collective within this period."""

_Dumps = Mapping[int, list[dict[str, Any]]]
_LeftOut = tuple[set[int], list[str]]


def of_other_jobs(store: Store, dumps: _Dumps) -> _LeftOut:
    """Ranks whose records list other members of the default group than most, and a line about them.

    Only lists that share a rank contradict each other. If no list has the most records, the only one with the records
    of all its members counts: a later job of the same name has replaced the others. Otherwise all are left out.
    """
    mine = {dump["dump"]: rank for rank, each in dumps.items() for dump in each}
    listed = [(tuple(row["members"]), mine[row["dump"]]) for row in store.query(_DEFAULT) if row["dump"] in mine]
    ranks_of = {members: {*ranks} for members, ranks in gathered(listed).items()}
    most = max(map(len, ranks_of.values()), default=0)
    usual = [members for members, ranks in ranks_of.items() if len(ranks) == most]
    if len(usual) > 1 and len(whole := [members for members in usual if ranks_of[members] == {*members}]) == 1:
        usual = whole
    clashing = [members for members in ranks_of if any({*members} & {*other} for other in usual if other != members)]
    if not clashing:
        return set(), []
    if tie := [members for members in clashing if members in usual]:
        each = "; ".join(f"those of {rank_list(ranks_of[one])} list {rank_list([*one])}" for one in sorted(tie))
        line = (
            "Flight records that list different members of default_pg are of different jobs, and no list has the most "
            f"records: {each}. None of them was compared."
        )
        return set().union(*(ranks_of[members] for members in clashing)), [line]
    others = set().union(*(ranks_of[members] for members in clashing))
    lists = " or ".join(rank_list([*members]) for members in sorted(clashing))
    return others, [
        f"{_records_of(others)} left out: records that list {lists} as all members of default_pg are of another job "
        f"than those of {rank_list(ranks_of[usual[0]])}, which list {rank_list([*usual[0]])}."
    ]


_DEFAULT = """
SELECT DISTINCT m.dump, g.members FROM fr_memberships m JOIN fr_groups g USING (group_id)
WHERE g.description = 'default_pg' AND g.members IS NOT NULL ORDER BY ALL
"""


def of_other_runs(store: Store, dumps: _Dumps) -> _LeftOut:
    """Return the ranks whose records are from another run than most, and lines for a person about them.

    This is judged by when the calls were made; the table `rules` must exist. `dumps` maps each rank to its rows of
    `fr_dumps`.
    """
    called = {
        rank: max(dump["last_call_ns"] for dump in mine)
        for rank, mine in dumps.items()
        if all(dump["origin"] not in LIVE and dump["last_call_ns"] is not None for dump in mine)
    }
    others, lines = _hours_apart(store, dumps, called)
    strange, more = _minutes_apart(store, dumps, {rank: ns for rank, ns in called.items() if rank not in others})
    left = {rank: ns for rank, ns in called.items() if rank not in others | strange}
    early, most = _overtaken(store, dumps, left)
    return others | strange | early, [*lines, *more, *most]


def _records_of(ranks: Iterable[int]) -> str:
    named = [*ranks]
    one = len(named) == 1
    return f"The flight record{'' if one else 's'} of {rank_list(named)} {'was' if one else 'were'}"


def _hours_apart(store: Store, dumps: _Dumps, called: Mapping[int, int]) -> _LeftOut:
    """Ranks whose calls are hours apart from those of the others, whatever they are."""
    if not called or max(called.values()) - min(called.values()) <= _APART_NS:
        return set(), []
    kept = _most(called, _APART_NS)
    _make_runs(store, dumps, called, kept)
    distances = {
        row["rank"]: min(abs(called[row["rank"]] - called[rank]) for rank in kept)
        if row["apart_ns"] is None
        else row["apart_ns"]
        for row in store.query(_APART)
    }
    others = {rank: apart_ns for rank, apart_ns in distances.items() if apart_ns > _APART_NS}
    if not others:
        return set(), []
    hours = max(others.values()) / _NS_PER_HOUR
    one = len(others) == 1
    line = (
        f"{_records_of(others)} left out: {'its' if one else 'their'} collectives were called {hours:.0f} hours apart "
        f"from those of the other ranks, so {'it is' if one else 'they are'} from another run of the job."
    )
    return set(others), [line]


def _make_runs(store: Store, dumps: _Dumps, called: Iterable[int], kept: set[int]) -> None:
    """Create the table `runs`: the dumps to compare, and whether they are of the ranks that most others agree with."""
    store.replace("runs", {"dump": "BIGINT", "is_kept": "BOOLEAN", "rank": "INTEGER"}, [
        [dump["dump"], rank in kept, rank] for rank in called for dump in dumps[rank]
    ])  # fmt: skip


_APART = """
WITH numbered AS (
    SELECT r.rank, r.is_kept, g.name, e.seq, min(e.created_ns) AS created_ns
    FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN runs r USING (dump)
        JOIN fr_groups g USING (group_id) JOIN fr_calls k USING (call)
    WHERE NOT k.is_p2p AND e.created_ns IS NOT NULL GROUP BY ALL
), usual AS (SELECT name, seq, median(created_ns) AS created_ns FROM numbered WHERE is_kept GROUP BY ALL)
SELECT n.rank, min(abs(n.created_ns - u.created_ns)) AS apart_ns
FROM numbered n SEMI JOIN usual k USING (name) LEFT JOIN usual u USING (name, seq)
WHERE NOT n.is_kept GROUP BY n.rank
"""


def _minutes_apart(store: Store, dumps: _Dumps, called: Mapping[int, int]) -> _LeftOut:
    """Ranks whose calls are minutes apart from those under the same numbers, and not by a wrong clock alone."""
    if not called or max(called.values()) - min(called.values()) <= _CLOCKS_NS:
        return set(), []
    _make_runs(store, dumps, called, _most(called, _CLOCKS_NS))
    apart = {row["rank"]: row["apart_ns"] for row in store.query(_SHARED) if not _is_explained(row)}
    if not apart:
        return set(), []
    earlier, later = (all(sign * ns > 0 for ns in apart.values()) for sign in (-1, 1))
    way = "before" if earlier else "after" if later else "apart from"
    one = len(apart) == 1
    line = (
        f"{_records_of(apart)} left out: from another time, {'' if one else 'up to '}"
        f"{max(map(abs, apart.values())) / _NS:.0f} s {way} the calls with the same numbers on other ranks. "
        f"Most of {'its' if one else 'their'} calls are other operations, or the distance in time varies."
    )
    return set(apart), [line]


def _overtaken(store: Store, dumps: _Dumps, called: Mapping[int, int]) -> _LeftOut:
    """A few ranks whose records end minutes and many calls before what their peers finished, with them, later on.

    Whatever their clocks: who has left out so many calls cannot have kept its peers from finishing them.
    """
    if not called or max(called.values()) - min(called.values()) <= _CLOCKS_NS:
        return set(), []
    _make_runs(store, dumps, called, {*called})
    latest = max(called.values())
    behind = {
        row["rank"]: row["behind"]
        for row in store.query(_BEHIND)
        if row["behind"] >= _fewest_calls(latest - called[row["rank"]])
    }
    if not behind or _FEW_OF * len(behind) > len(called):
        return set(), []
    one = len(behind) == 1
    line = (
        f"{_records_of(behind)} left out: peers of {'that rank' if one else 'those ranks'} finished up to "
        f"{max(behind.values())} later collectives with {'it' if one else 'them'}, so {'it is' if one else 'they are'} "
        "from an earlier moment or another run."
    )
    return set(behind), [line]


def _fewest_calls(apart_ns: int) -> float:
    """By how many calls a record must end early to be from another moment, if it ends this much before its peers'."""
    if apart_ns > _WRONG_NS and is_beyond_zones(apart_ns / _NS):
        return 1
    return _MANY_CALLS if apart_ns > _CLOCKS_NS else math.inf


# By how many collectives a rank's record ends before the last one that a peer finished, where none finishes alone.
_BEHIND = """
WITH made AS (
    SELECT r.rank, g.name, g.members, greatest(max(e.seq), max(m.last_enqueued)) AS called,
        max(e.seq) FILTER (e.done AND k.together) AS finished
    FROM fr_memberships m JOIN runs r USING (dump) JOIN fr_groups g USING (group_id)
        JOIN fr_entries e USING (membership) JOIN rules k USING (call)
    WHERE NOT k.is_p2p AND NOT k.closing AND g.members IS NOT NULL GROUP BY ALL
), peers AS (SELECT name, members, max(finished) AS finished FROM made GROUP BY ALL)
SELECT m.rank, max(coalesce(p.finished - m.called, 0)) AS behind FROM made m JOIN peers p USING (name, members)
WHERE list_contains(m.members, m.rank) GROUP BY m.rank ORDER BY m.rank
"""


def _is_explained(shared: Mapping[str, Any]) -> bool:
    """Whether a record's distance in time allows that it is of the same run; `shared`: a row of `_SHARED`."""
    limit_ns = _CLOCKS_NS if shared["finished"] else _WAIT_NS
    history = 2 * shared["steady"] >= shared["finished"] if shared["finished"] else shared["alike"] > 0
    return bool(history or abs(shared["apart_ns"]) <= limit_ns)


# What a rank and those that count recorded under the same numbers. finished: how many both sides finished; steady: how
# many of these are alike, and at the usual distance, where no rank finishes before all have called.
_SHARED = f"""
WITH numbered AS (
    SELECT r.rank, r.is_kept, m.group_id, e.seq, k.op, k.sizes, k.together, bool_and(e.done) AS done,
        min(e.created_ns) AS called_ns, max(e.completed_ns) AS ended_ns
    FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN runs r USING (dump) JOIN rules k USING (call)
    WHERE NOT k.is_p2p AND NOT k.closing AND e.created_ns IS NOT NULL GROUP BY ALL
), usual AS (
    SELECT group_id, seq, op, sizes, bool_or(done) AS done, median(called_ns) AS called_ns, median(ended_ns) AS ended_ns
    FROM numbered WHERE is_kept GROUP BY ALL
), same_groups AS (
    SELECT a.group_id, b.group_id AS other FROM fr_groups a JOIN fr_groups b ON a.name = b.name
        AND coalesce(a.members = b.members, true)
), pairs AS (
    SELECT n.rank, n.group_id, n.seq, n.together, n.done AND u.done AS finished, n.called_ns - u.called_ns AS apart_ns,
        n.op = u.op AND coalesce(n.sizes = u.sizes, true) AS alike,
        coalesce(n.ended_ns - u.ended_ns, n.called_ns - u.called_ns) AS shift_ns
    FROM numbered n JOIN same_groups s USING (group_id) JOIN usual u ON u.group_id = s.other AND u.seq = n.seq
    WHERE NOT n.is_kept
), middles AS (
    SELECT rank, median(shift_ns) FILTER (alike AND together AND finished) AS middle_ns FROM pairs GROUP BY rank
), shared AS (
    SELECT rank, group_id, seq, bool_or(finished) AS finished, bool_or(alike) AS alike, median(apart_ns) AS apart_ns,
        bool_or(finished AND alike AND (NOT together OR abs(shift_ns - middle_ns) <= {_STEADY_NS})) AS steady
    FROM pairs JOIN middles USING (rank) GROUP BY rank, group_id, seq
)
SELECT rank, count(*) FILTER (finished) AS finished, count(*) FILTER (alike) AS alike, count(*) FILTER (steady) AS
    steady, coalesce(median(apart_ns) FILTER (finished), median(apart_ns)) AS apart_ns
FROM shared GROUP BY rank ORDER BY rank
"""


def _most(called: Mapping[int, int], apart_ns: int) -> set[int]:
    """The largest set of ranks whose last calls are close in time; on a tie, the latest set."""
    ordered = sorted(called, key=lambda rank: called[rank])
    runs = [[ordered[0]]]
    for before, rank in pairwise(ordered):
        if called[rank] - called[before] > apart_ns:
            runs.append([])
        runs[-1].append(rank)
    longest = runs[0]
    for run in runs[1:]:
        longest = run if len(run) >= len(longest) else longest
    return set(longest)
