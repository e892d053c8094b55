"""Whether records can show that a job is well."""

from __future__ import annotations

from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S

_LEAST_TO_COMPARE = 3
"""Two processes note so many equal times, to the nanosecond, only in copies of one record."""
_APART_S = 600.0
"""No clock of a host that trains is so wrong, and NCCL waits no longer by default."""
_NS = 1e9


def is_at_rest(records: Records) -> bool:
    """Whether records can show that a job is well: each is of a rank of its own, and all are of one moment.

    Where nobody noted when a record was taken, a rank whose record ends long before peers finished what it never called
    may have stopped there; and what ends many minutes apart may be of two attempts.
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
    """The last time that each record mentions."""
    return [record.latest_sign_ns for record in records.ranks.values() if record.latest_sign_ns is not None]


def _copies(records: Records) -> bool:
    """Whether two ranks have the same record: a file was copied to the name of another rank."""
    return bool(
        records.query(
            "SELECT 1 FROM (SELECT rank, count(created_ns) AS calls, "
            "sum(hash(group_id, seq, created_ns, completed_ns)) AS same "
            f"FROM recorded_numbers GROUP BY rank HAVING calls >= {_LEAST_TO_COMPARE} "
            "AND max(created_ns) > min(created_ns)) GROUP BY same HAVING count(*) > 1 LIMIT 1"
        )
    )
