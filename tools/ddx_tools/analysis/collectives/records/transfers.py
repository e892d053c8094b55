"""Unfinished sends and receives, per direction, in the order of each rank's calls.

NCCL writes `send 1->2` with ranks within the group. Each end keeps its own count, and a ring buffer loses the
beginning, so pending ends of one direction are paired in order: the first pending send with the first pending receive.

A batch (`batch_isend_irecv`) records its parts, followed by a `coalesced` entry. On most versions the parts have no
events of their own and stay `scheduled` for ever (pytorch#137969): the state of a part is that of the closing entry.
Gloo records no transfers (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddx_tools.analysis.collectives.records.comparable import elements
from ddx_tools.evidence.store import Store

_MOST_PENDING = 64
"""How many pending ends of one rank and direction are examined, the first ones."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of a pending send or receive, with global ranks."""

    rank: int
    group_id: int
    record_id: int
    source: int
    target: int
    batch: int | None
    """Record id of the entry that closes its batch; None if it is in no batch."""
    started: bool
    created_ns: int | None
    elements: str | None
    """Amount transferred: elements of each tensor."""

    @property
    def peer(self) -> int:
        """The rank at the other end."""
        return self.target if self.rank == self.source else self.source

    @property
    def direction(self) -> tuple[int, int, int]:
        """The key that both ends share: group, source, target."""
        return self.group_id, self.source, self.target

    @property
    def words(self) -> str:
        """The operation in words, with global ranks: `send 1->2`."""
        return f"{'send' if self.rank == self.source else 'recv'} {self.source}->{self.target}"


def make_batches(store: Store) -> None:
    """Create the temporary table `batches` of the entries that close batches of sends and receives.

    A closing entry carries the sequence number of an earlier collective. One at the start of a ring buffer is included:
    the entries that it closes were overwritten and may have been transfers.
    """
    any_closes = store.query("SELECT 1 FROM rules WHERE closing LIMIT 1")
    store.execute(
        "CREATE OR REPLACE TEMP TABLE batches AS "
        "SELECT rank, group_id, seq, p2p_seq, max(record_id) AS record_id, bool_or(done) AS done, "
        "bool_or(state = 'started') AS started FROM recorded_numbers JOIN rules USING (call) SEMI JOIN ("
        "SELECT rank, group_id, seq, p2p_seq FROM recorded_numbers JOIN rules USING (call) WHERE is_p2p AND NOT closing"
        " UNION ALL SELECT rank, arg_min(group_id, record_id), arg_min(seq, record_id), arg_min(p2p_seq, record_id) "
        "FROM recorded_numbers JOIN rules USING (call) GROUP BY rank "
        "HAVING min(record_id) > 0 AND arg_min(closing, record_id)"
        ") t USING (rank, group_id, seq, p2p_seq) WHERE closing GROUP BY ALL" + ("" if any_closes else " LIMIT 0")
    )


Transfers = dict[tuple[int, int, int], dict[int, list[Transfer]]]
"""`{(group, source, target): {rank: its pending ends in order}}`."""


def pending_transfers(
    store: Store, members: Mapping[int, tuple[int, ...] | None], *, only_active: bool = False
) -> Transfers:
    """All unfinished sends and receives. `members`: per group id, the global ranks in group order.

    `only_active`: the dumps leave out finished entries, including those that closed batches.
    """
    found: Transfers = {}
    if not store.query("SELECT 1 FROM rules WHERE is_p2p LIMIT 1"):
        return found
    store.execute(_MAKE_CLOSED + ("" if only_active else " LIMIT 0"))
    for row in store.query(_PENDING):
        ends = ends_of(members[row["group_id"]], row["peer"])
        if ends is None or row["rank"] not in ends or ends[0] == ends[1]:
            continue
        as_read = {name: row[name] for name in ("rank", "group_id", "record_id", "batch", "created_ns")}
        started, moved = bool(row["started"]), elements(row["sizes"])
        transfer = Transfer(source=ends[0], target=ends[1], started=started, elements=moved, **as_read)
        found.setdefault(transfer.direction, {}).setdefault(transfer.rank, []).append(transfer)
    return found


# In dumps of active work, a finished batch's closing entry is left out, so a number is missing after its parts. No
# number can be missing after the last parts of a record: these are treated like others of their kind.
_MAKE_CLOSED = """
CREATE OR REPLACE TEMP TABLE closed_batches AS
WITH steps AS (
    SELECT n.rank, n.group_id, n.p2p_seq, n.record_id, k.is_p2p AND k.op <> 'coalesced' AS part, k.peer,
        coalesce(nullif(k.input_sizes, '[]'), k.output_sizes) AS sizes,
        lead(n.record_id) OVER (PARTITION BY n.rank ORDER BY n.record_id) > n.record_id + 1 AS missing
    FROM recorded_numbers n JOIN fr_calls k USING (call)
), parts AS (
    SELECT *, arg_max_null(missing, record_id) OVER (PARTITION BY rank, group_id, p2p_seq) AS closed
    FROM steps WHERE part
)
SELECT DISTINCT rank, group_id, p2p_seq FROM parts
WHERE closed OR (closed IS NULL AND (group_id, peer, sizes) IN (SELECT (group_id, peer, sizes) FROM parts WHERE closed))
"""

# A later finished operation of the same stream proves an earlier one finished: for a batch, any collective or batch of
# the group; for a single transfer, one with the same peer, as each pair has its own communicator.
_PENDING = f"""
WITH ends AS (
    SELECT n.rank, n.group_id, n.record_id, n.seq, n.p2p_seq, n.created_ns, n.state, n.done, k.op, k.peer,
        coalesce(nullif(k.input_sizes, '[]'), k.output_sizes) AS sizes
    FROM recorded_numbers n JOIN fr_calls k USING (call)
    ANTI JOIN closed_batches c ON c.rank = n.rank AND c.group_id = n.group_id AND c.p2p_seq = n.p2p_seq
    WHERE k.is_p2p AND k.op <> 'coalesced'
), stream AS (
    SELECT rank, group_id, max(record_id) AS last FROM recorded_numbers JOIN rules USING (call)
    WHERE done AND NOT is_p2p GROUP BY rank, group_id
), pair AS (
    SELECT rank, group_id, op, peer, max(record_id) AS last FROM ends WHERE done GROUP BY ALL
)
SELECT e.rank, e.group_id, e.record_id, e.peer, e.created_ns, e.sizes, b.record_id AS batch,
    coalesce(b.started, e.state = 'started') AS started
FROM ends e
LEFT JOIN batches b ON b.rank = e.rank AND b.group_id = e.group_id AND b.seq = e.seq AND b.p2p_seq = e.p2p_seq
LEFT JOIN stream s ON s.rank = e.rank AND s.group_id = e.group_id
LEFT JOIN pair p ON p.rank = e.rank AND p.group_id = e.group_id AND p.op = e.op AND p.peer = e.peer
WHERE NOT e.done AND NOT coalesce(b.done, false) AND e.record_id > coalesce(p.last, -1)
    AND (b.record_id IS NULL OR b.record_id > coalesce(s.last, -1))
QUALIFY row_number() OVER (PARTITION BY e.rank, e.group_id, e.op, e.peer ORDER BY e.record_id) <= {_MOST_PENDING}
ORDER BY e.rank, e.record_id
"""


def ends_of(members: tuple[int, ...] | None, peer: str | None) -> tuple[int, int] | None:
    """The global ranks (source, target) of `1->2`, whose numbers are ranks within the group; None if unknown."""
    source, _, target = (peer or "").partition("->")
    # Gloo's receive from any source says `?`: no rank can be named.
    if not (source.isdecimal() and target.isdecimal()) or members is None:
        return None
    if max(int(source), int(target)) >= len(members):
        return None
    return members[int(source)], members[int(target)]
