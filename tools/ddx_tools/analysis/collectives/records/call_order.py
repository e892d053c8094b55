"""Ranks that make two calls in a row which no other rank makes in a row anywhere: there they left the program's path.

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
    """Return the rank that recently made two calls in a row which occur in a row nowhere else.

    The calls are compared by operation, group and peer, then with their sizes and types. The set is empty if no rank
    has such a pair, or several have one.
    """
    for columns in ((), _SHAPES):
        if found := {rank for ranks in _odd_pairs(store, columns) if len(ranks) == 1 for rank in ranks}:
            return frozenset(found) if len(found) == 1 else frozenset()
    return frozenset()


def off_path_together(store: Store) -> frozenset[int]:
    """Return the ranks that once each made two calls in a row which no other rank made in a row.

    The second call is in a group of all ranks, and was also made after other calls. The set is empty if there is no
    such pair, or if different sets of ranks have one.
    """
    everybody = store.query("SELECT count(DISTINCT rank) AS ranks FROM recorded_numbers")[0]["ranks"]
    for columns in ((), _SHAPES):
        if found := {ranks for ranks in _odd_pairs(store, columns, together=True) if len(ranks) < everybody}:
            return next(iter(found)) if len(found) == 1 else frozenset()
    return frozenset()


def _odd_pairs(store: Store, columns: tuple[str, ...], *, together: bool = False) -> list[frozenset[int]]:
    """The ranks of each recent pair of calls that whoever made it made once.

    `together`: only pairs whose second call is in a group of all ranks, and was also made after something else.
    """
    where, having = ("AND of_all", "AND any_value(calls) > count(*)") if together else ("", "")
    rows = store.query(_ODD_PAIRS.format("".join(f", k.{name}" for name in columns), where, having))
    return [frozenset(row["ranks"]) for row in rows]


# The kind of a group: its description or, without one, its size (as in quotes.kind_of). A group of all ranks is itself.
_ODD_PAIRS = f"""
WITH kinds AS (
    SELECT group_id, len(members) = max(len(members)) OVER () AS of_all,
        CASE WHEN of_all THEN CAST(group_id AS VARCHAR) WHEN description NOT IN ('', 'undefined') THEN description
        ELSE CAST(len(members) AS VARCHAR) END AS kind FROM fr_groups
), calls AS (
    SELECT n.rank, of_all, n.done OR coalesce(b.done, false) AS done, hash(kind, k.op, k.peer{{}}) AS called,
        row_number() OVER (PARTITION BY n.rank ORDER BY n.record_id) AS place
    FROM recorded_numbers n JOIN fr_calls k USING (call) JOIN kinds USING (group_id)
        LEFT JOIN batches b USING (rank, group_id, seq, p2p_seq)
), pairs AS (
    SELECT rank, place, of_all, called, lag(called) OVER (PARTITION BY rank ORDER BY place) AS before,
        count(*) OVER (PARTITION BY called) AS calls FROM calls
), fronts AS (
    SELECT rank, coalesce(min(place) FILTER (NOT done), max(place) + 1) AS front FROM calls GROUP BY rank
), once AS (
    SELECT before, called, list(DISTINCT rank ORDER BY rank) AS ranks, bool_and(place >= front - {_RECENT}) AS recent
    FROM pairs JOIN fronts USING (rank) WHERE before IS NOT NULL {{}}
    GROUP BY before, called HAVING count(*) = count(DISTINCT rank) {{}}
)
SELECT ranks FROM once WHERE recent ORDER BY ranks
"""
