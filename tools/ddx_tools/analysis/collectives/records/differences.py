"""Where the members' calls of one number differ: what all comparisons of calls begin with.

tokens            what identifies each collective: its operation, sizes and call site, as numbers of `rules`
differences       for each group and number, whether these differ, and the ranks between which call sites are known
"""

from __future__ import annotations

from ddx_tools.store import Store


def make_differences(store: Store) -> None:
    """The view `tokens`, and the table `differences`: one look at all entries instead of one for each question."""
    store.execute(
        "CREATE OR REPLACE TEMP VIEW tokens AS SELECT group_id, rank, seq, op, sizes, dtypes, "
        "CASE WHEN rooted THEN caller ELSE site END AS place "
        "FROM recorded_numbers JOIN rules USING (call) LEFT JOIN places USING (site) "
        "WHERE NOT is_p2p AND NOT closing AND seq IS NOT NULL"
    )
    store.execute(
        "CREATE OR REPLACE TEMP TABLE differences AS SELECT group_id, seq, min(op) <> max(op) AS ops, "
        "min(sizes) <> max(sizes) AS sizes, min(dtypes) <> max(dtypes) AS dtypes, min(place) <> max(place) AS places, "
        "min(rank) FILTER (place IS NOT NULL) AS first_placed, max(rank) FILTER (place IS NOT NULL) AS last_placed "
        "FROM tokens GROUP BY group_id, seq"
    )
