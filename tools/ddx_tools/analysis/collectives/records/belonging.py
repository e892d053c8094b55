"""Whether the records of several ranks come from one run of a job, judged by when they entered the same collectives.

Where two records of one group share no number, their last calls are compared: in one run, ring buffers that overlap in
time also overlap in numbers. Host clocks differ by seconds, wrong ones by minutes. Records that are hours apart are
from another run, or copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ddx_tools.analysis.collectives.records.attempts import LIVE
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import rank_list

_NS_PER_HOUR = 3_600_000_000_000
_APART_NS = 3 * _NS_PER_HOUR
"""No rank waits this long in one collective for its peers, and no clock is off by this much."""

_Dumps = Mapping[int, list[dict[str, Any]]]


def of_other_runs(store: Store, dumps: _Dumps) -> tuple[set[int], list[str]]:
    """Ranks whose records are from another run than most, and a line about them: hours lie between the calls."""
    called = {
        rank: max(dump["last_call_ns"] for dump in mine)
        for rank, mine in dumps.items()
        if all(dump["origin"] not in LIVE and dump["last_call_ns"] is not None for dump in mine)
    }
    if not called or max(called.values()) - min(called.values()) <= _APART_NS:
        return set(), []
    kept = _most(called)
    store.replace("runs", {"dump": "BIGINT", "is_kept": "BOOLEAN", "rank": "INTEGER"}, [
        [dump["dump"], rank in kept, rank] for rank in called for dump in dumps[rank]
    ])  # fmt: skip
    apart = store.query(_APART)
    distances = {
        row["rank"]: min(abs(called[row["rank"]] - called[rank]) for rank in kept)
        if row["apart_ns"] is None
        else row["apart_ns"]
        for row in apart
    }
    others = {rank: apart_ns for rank, apart_ns in distances.items() if apart_ns > _APART_NS}
    if not others:
        return set(), []
    hours = max(others.values()) / _NS_PER_HOUR
    one = len(others) == 1
    line = (
        f"The flight record{'' if one else 's'} of {rank_list(set(others))} {'was' if one else 'were'} left out: "
        f"{'its' if one else 'their'} collectives were called {hours:.0f} hours apart from those of the other ranks, "
        f"so {'it is' if one else 'they are'} from another run of the job."
    )
    return set(others), [line]


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


def _most(called: Mapping[int, int]) -> set[int]:
    """The largest set of ranks whose last calls are close in time; on a tie, the latest set."""
    ordered = sorted(called, key=lambda rank: called[rank])
    runs = [[ordered[0]]]
    for before, rank in pairwise(ordered):
        if called[rank] - called[before] > _APART_NS:
            runs.append([])
        runs[-1].append(rank)
    longest = runs[0]
    for run in runs[1:]:
        longest = run if len(run) >= len(longest) else longest
    return set(longest)
