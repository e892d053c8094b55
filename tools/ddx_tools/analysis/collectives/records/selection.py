"""Selection of the dumps that count, and views over their entries: one record per rank, groups joined across ranks.

chosen            group memberships in the dumps that count, with rank and group
recorded_numbers  their entries, numeric columns only: what can be compared without text
recorded          their entries, with text columns
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddx_tools.analysis.collectives.records.attempts import chosen_attempt
from ddx_tools.analysis.collectives.records.belonging import of_other_jobs, of_other_runs
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

_Row = dict[str, Any]


@dataclass(frozen=True)
class DumpSelection:
    """The dumps that count, per rank, and the groups that they name."""

    dumps: Mapping[int, list[_Row]]
    groups: list[_Row]
    world_size: int | None
    left_out: list[str]
    """Dumps from another attempt of the job, or another moment, as lines for a person."""
    of_other_runs: frozenset[int]
    """Ranks whose dumps were left out because they are from another run or another job."""


def select(store: Store) -> DumpSelection:
    """Choose the dumps that count and create the views; dumps of unknown rank are left out (the probe lists them).

    Needs the table `rules`.
    """
    dumps = store.query(
        "SELECT * FROM fr_dumps WHERE rank IS NOT NULL ORDER BY rank, taken_ns NULLS FIRST, with_frames, source"
    )
    choice = chosen_attempt(dumps)
    by_rank = gathered((dump["rank"], dump) for dump in map(dict, choice.dumps))
    base: dict[int, list[_Row]] = {}
    later: list[_Row] = []
    for rank, mine in by_rank.items():
        base[rank], more = _of_the_moment(mine)
        later += more
    foreign, lines = of_other_jobs(store, base)
    base = {rank: mine for rank, mine in base.items() if rank not in foreign}
    sizes = [dump["world_size"] for dump in dumps if dump["world_size"] and dump["rank"] not in foreign]
    others, others_lines = of_other_runs(store, base)
    foreign, lines = foreign | others, [*lines, *others_lines]
    base = {rank: mine for rank, mine in base.items() if rank not in foreign}
    later = [dump for dump in later if dump["rank"] not in foreign]
    groups = _make_chosen(store, base)
    _make_recorded(store, base, later)
    for dump in later:
        base[dump["rank"]][0]["with_frames"] |= dump["with_frames"]
    return DumpSelection(base, groups, max(sizes, default=None), [*lines, *choice.left_out], frozenset(foreign))


def _of_the_moment(dumps: list[_Row]) -> tuple[list[_Row], list[_Row]]:
    """The dumps to use for one rank (one for each recorder of the process), and those that only add details.

    A live capture reads all ranks at one moment without frames, then some of them again with frames: the first
    sample is the simultaneous one. Of the dumps that a job left on disk, the newest counts, since older ones may
    be from an earlier attempt.
    """
    live = [dump for dump in dumps if dump["origin"] == "agent"]
    moment = (live[0] if live else dumps[-1])["taken_ns"]
    # If one moment of a recorder exists in several encodings, the last one has frames, if any has.
    together = [dump for dump in live or dumps if dump["taken_ns"] == moment]
    base = list({dump["backend"]: dump for dump in together}.values())
    return base, [dump for dump in live if dump["taken_ns"] != moment]


def _make_chosen(store: Store, base: Mapping[int, list[_Row]]) -> list[_Row]:
    """Create the table `chosen`; return its groups. Ranks whose dump lists no members join the group listing them."""
    store.replace("chosen_dumps", {"dump": "BIGINT"}, [[dump["dump"]] for dumps in base.values() for dump in dumps])
    unlisted = store.query(
        "SELECT DISTINCT d.rank, g.group_id, g.name FROM fr_memberships m JOIN chosen_dumps USING (dump) "
        "JOIN fr_dumps d USING (dump) JOIN fr_groups g USING (group_id) WHERE g.members IS NULL"
    )
    joined = []
    if unlisted:
        listing = store.query(
            "SELECT DISTINCT g.group_id, g.name, g.members FROM fr_groups g JOIN fr_memberships m USING (group_id) "
            "JOIN chosen_dumps USING (dump) WHERE g.members IS NOT NULL"
        )
        for row in unlisted:
            fitting = [g for g in listing if g["name"] == row["name"] and row["rank"] in g["members"]]
            if len(fitting) == 1:
                joined.append([row["rank"], row["group_id"], fitting[0]["group_id"]])
    store.replace("joined_groups", {"rank": "INTEGER", "named": "BIGINT", "group_id": "BIGINT"}, joined)
    store.execute(
        "CREATE OR REPLACE TEMP TABLE chosen AS SELECT m.membership, m.dump, d.rank, d.source, "
        "coalesce(j.group_id, m.group_id) AS group_id, m.last_enqueued, m.last_started, m.last_completed "
        "FROM fr_memberships m JOIN chosen_dumps USING (dump) JOIN fr_dumps d USING (dump) "
        "LEFT JOIN joined_groups j ON j.rank = d.rank AND j.named = m.group_id"
    )
    return store.query("SELECT * FROM fr_groups WHERE group_id IN (SELECT group_id FROM chosen) ORDER BY group_key")


_NUMBERS = (
    "e.record_id, e.seq, e.p2p_seq, e.op_id, e.call, e.state, e.retired, e.created_ns, e.started_ns, e.completed_ns"
)


def _make_recorded(store: Store, base: Mapping[int, list[_Row]], later: list[_Row]) -> None:
    """Create the views of entries. A later sample of the same rank adds call sites and completions."""
    if later:
        store.replace("later_dumps", {"dump": "BIGINT"}, [[dump["dump"]] for dump in later])
        store.execute(
            "CREATE OR REPLACE TEMP TABLE added AS SELECT d.rank, coalesce(j.group_id, m.group_id) AS group_id, "
            "e.record_id, any_value(e.site) AS site, bool_or(e.done) AS done, arg_max(d.source, e.site) AS source "
            "FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN later_dumps USING (dump) "
            "JOIN fr_dumps d USING (dump) LEFT JOIN joined_groups j ON j.rank = d.rank AND j.named = m.group_id "
            "GROUP BY ALL"
        )
        store.execute(
            f"CREATE OR REPLACE TEMP VIEW recorded_numbers AS SELECT c.rank, c.group_id, {_NUMBERS}, "
            "coalesce(e.site, a.site) AS site, e.done OR coalesce(a.done, false) AS done, "
            "CASE WHEN e.site IS NULL AND a.site IS NOT NULL THEN a.source ELSE c.source END AS source "
            "FROM fr_entries e JOIN chosen c USING (membership) "
            "LEFT JOIN added a ON a.rank = c.rank AND a.group_id = c.group_id AND a.record_id = e.record_id"
        )
    else:
        store.execute(
            f"CREATE OR REPLACE TEMP VIEW recorded_numbers AS SELECT c.rank, c.group_id, {_NUMBERS}, e.site, e.done, "
            "c.source FROM fr_entries e JOIN chosen c USING (membership)"
        )
    store.execute(f"CREATE OR REPLACE TEMP VIEW recorded AS {with_texts('recorded_numbers')}")


def with_texts(numbers: str) -> str:
    """Return an SQL query that joins the text columns (operation, sizes, call path, …) to entries.

    `numbers` is the name of a table or view of entries with the columns `call` and `site`.
    """
    return (
        "SELECT n.*, k.backend, k.op, k.is_p2p, k.peer, k.input_sizes, k.input_dtypes, k.output_sizes, "
        "k.output_dtypes, k.input_splits, k.output_splits, k.timeout_ms, s.user_file, s.user_line, s.user_function, "
        f"s.path, s.contexts FROM {numbers} n JOIN fr_calls k USING (call) LEFT JOIN fr_sites s USING (site)"
    )
