"""How far ranks came in their groups, and what they are stuck in: tables and queries over the views of `selection`.

positions         the first and the last collective of each rank and group, and the last finished ones
pending           the oldest one that each rank has not finished
same_numbers      what every rank recorded under these numbers

As tables, since several queries need them and millions of entries are behind each.
"""

from __future__ import annotations

from ddx_tools.analysis.collectives.records.selection import with_texts

# The entry that closes a batch of transfers carries the number of the collective before it.
_COLLECTIVES = """
SELECT * FROM recorded_numbers JOIN rules USING (call) ANTI JOIN batches USING (rank, group_id, record_id)
WHERE NOT is_p2p AND seq IS NOT NULL
"""

MAKE_POSITIONS = f"""
CREATE OR REPLACE TEMP TABLE positions AS
SELECT group_id, rank, min(seq) AS first_seq, max(seq) AS last_seq, max(seq) FILTER (done) AS last_done,
    max(seq) FILTER (done AND together) AS last_done_together
FROM ({_COLLECTIVES}) GROUP BY group_id, rank
"""

# An operation may be marked late (Gloo's `retired`): what lies before a finished one of the group is finished.
MAKE_PENDING = f"""
CREATE OR REPLACE TEMP TABLE pending AS
SELECT r.group_id, r.rank, min(r.seq) AS seq
FROM ({_COLLECTIVES}) r JOIN positions p ON p.group_id = r.group_id AND p.rank = r.rank
WHERE NOT r.done AND r.seq > coalesce(p.last_done, -1) GROUP BY r.group_id, r.rank
"""

MAKE_SAME_NUMBERS = """
CREATE OR REPLACE TEMP TABLE same_numbers AS
SELECT n.* FROM recorded_numbers n SEMI JOIN pending p ON n.group_id = p.group_id AND n.seq = p.seq
ANTI JOIN batches b ON b.rank = n.rank AND b.group_id = n.group_id AND b.record_id = n.record_id
"""

OLDEST_PENDING = f"""
SELECT e.* FROM ({with_texts("same_numbers")}) e
JOIN pending p ON e.group_id = p.group_id AND e.rank = p.rank AND e.seq = p.seq
WHERE NOT e.is_p2p ORDER BY e.group_id, e.rank, e.op = 'coalesced' DESC, e.record_id
"""

SAME_NUMBERS = f"""
SELECT e.* FROM ({with_texts("same_numbers")}) e WHERE NOT e.is_p2p ORDER BY e.group_id, e.seq, e.rank, e.record_id
"""
