"""The rank that makes two calls in a row which no rank makes in a row anywhere else: there it left the program's path.

A program repeats its steps, on every rank with the same role. Sends and receives name their peer by its place in the
group, so ranks with the same place in other groups make the same calls. A rank that skips a transfer, or addresses
another peer, makes a pair of calls that is found nowhere else, neither in its own earlier steps nor on another rank.
"""

from __future__ import annotations

from ddx_tools.evidence.store import Store

_RECENT = 200
"""How many calls before the first unfinished one are examined: about a step of a pipeline, which calls ahead. Of a
batch, only the closing entry finishes."""
_SHAPES = ("input_sizes", "input_dtypes", "output_sizes")


def off_path(store: Store) -> frozenset[int]:
    """The only rank with a recent pair of calls that occurs once in all records; empty if none or several have one.

    The calls are compared first by operation, group and peer, then with their sizes and types.
    """
    for columns in ((), _SHAPES):
        rows = store.query(_ODD_PAIRS.format("".join(f", k.{name}" for name in columns)))
        if found := frozenset(row["rank"] for row in rows):
            return found if len(found) == 1 else frozenset()
    return frozenset()


# The kind of a group: its description or, without one, its size (as in quotes.kind_of).
_ODD_PAIRS = f"""
WITH kinds AS (
    SELECT group_id, CASE WHEN description NOT IN ('', 'undefined') THEN description
        ELSE CAST(len(members) AS VARCHAR) END AS kind FROM fr_groups
), calls AS (
    SELECT n.rank, n.done OR coalesce(b.done, false) AS done, hash(kind, k.op, k.peer{{}}) AS called,
        row_number() OVER (PARTITION BY n.rank ORDER BY n.record_id) AS place
    FROM recorded_numbers n JOIN fr_calls k USING (call) JOIN kinds USING (group_id)
        LEFT JOIN batches b USING (rank, group_id, seq, p2p_seq)
), pairs AS (
    SELECT rank, place, called, lag(called) OVER (PARTITION BY rank ORDER BY place) AS before FROM calls
), fronts AS (
    SELECT rank, coalesce(min(place) FILTER (NOT done), max(place) + 1) AS front FROM calls GROUP BY rank
), once AS (
    SELECT any_value(rank) AS rank, max(place) AS place FROM pairs WHERE before IS NOT NULL
    GROUP BY before, called HAVING count(*) = 1
)
SELECT DISTINCT rank FROM once JOIN fronts USING (rank) WHERE place >= front - {_RECENT} ORDER BY rank
"""
