"""Whether flight records can show that a job is healthy."""

from __future__ import annotations

from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S

_LEAST_TO_COMPARE = 3
"""Two records with this many equal times, to the nanosecond, are copies of one record."""
_APART_S = 600.0
"""No training host's clock is off by this much, and NCCL waits no longer than this by default."""
_NS = 1e9


def is_at_rest(records: Records) -> bool:
    """Whether the records can show that a job is healthy: each is from a different rank, and all are from one moment.

    If a record's time is unknown, its rank may have stopped where the record ends, long before peers finished what it
    never called. Records that end many minutes apart may come from two attempts.
    """
    return not (_copies(records) or _far_apart(records) or _ends_early(records))


def _far_apart(records: Records) -> bool:
    signs = _signs(records)
    return bool(signs) and max(signs) - min(signs) > _APART_S * _NS


def _ends_early(records: Records) -> bool:
    newest = max(_signs(records), default=0)
    undated = {rank: record.latest_sign_ns for rank, record in records.ranks.items() if record.taken_ns is None}
    early = {rank for rank, sign in undated.items() if sign is None or newest - sign > SETTLED_S * _NS}
    return any(group.is_overtaken(rank) for group in records.groups.values() for rank in early & group.positions.keys())


def _signs(records: Records) -> list[int]:
    """The latest time mentioned in each record."""
    return [record.latest_sign_ns for record in records.ranks.values() if record.latest_sign_ns is not None]


def _copies(records: Records) -> bool:
    """Whether two ranks have the same record because a file was copied under another rank's name."""
    return bool(
        records.query(
            "SELECT 1 FROM (SELECT rank, count(created_ns) AS calls, "
            "sum(hash(group_id, seq, created_ns, completed_ns)) AS same "
            f"FROM recorded_numbers GROUP BY rank HAVING calls >= {_LEAST_TO_COMPARE} "
            "AND max(created_ns) > min(created_ns)) GROUP BY same HAVING count(*) > 1 LIMIT 1"
        )
    )
