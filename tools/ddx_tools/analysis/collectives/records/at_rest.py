"""Whether flight records can show that a job is healthy: each of another rank, all of one job, one attempt, one moment.

Dumps of live ranks are of one moment by the way they are taken. Files may be of anything: they show no health if a
time, a member or a repeated entry contradicts that they belong together, or if nothing shows how long a rank stood in
a call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace
from ddx_tools.analysis.collectives.records.device_positions import Fronts
from ddx_tools.analysis.collectives.records.quotes import where
from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S, STANDING_S
from ddx_tools.analysis.ranks.first_calls import is_beyond_zones
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list

_APART_S = 600.0
"""No training host's clock is off by this much, and NCCL waits no longer than this by default."""
_NS = 1e9
_MAX_EVIDENCE = 8
_ENDED = ("idle", "hidden")

_How = Literal["copies", "members", "undated", "apart", "unfinished", "cut", "ends_early", "before_logs"]
_Doubt = tuple[_How, Collection[int], str]


def doubt_about(records: Records, fronts: Fronts) -> Finding | None:
    """Return a notice why flight records without a fault still do not show that the job is healthy.

    Reasons are, for example, copied files, ranks without times, or records from different moments. Only the first is
    reported; None if there is none.
    """
    found = (
        _copies(records)
        or _other_members(records)
        or _undated(records)
        or _apart(records)
        or _unfinished(records, fronts)
        or _cut(records)
        or _ends_early(records)
    )
    return None if found is None else _finding(records, found)


def before_the_logs(records: Records) -> Finding | None:
    """Return a notice if the flight records end at least ten minutes before the job's log does.

    What they show was over by then. None if they do not, or if times are unknown.
    """
    found = _before_the_logs(records)
    return None if found is None else _finding(records, found)


def _finding(records: Records, doubt: _Doubt) -> Finding:
    how, ranks, why = doubt
    places = [Evidence(source=records.ranks[rank].source) for rank in sorted(ranks)[:_MAX_EVIDENCE]]
    return raising.finding(
        "records.inconsistent",
        Severity.NOTICE,
        ranks,
        f"The flight records do not show that the job is healthy: {why}.",
        where(None),
        FindingPlace(places),
        how=how,
    )


def _copies(records: Records) -> _Doubt | None:
    """Ranks with the same times in all entries: a file was copied under another rank's name."""
    alike = records.query(
        "SELECT list(rank ORDER BY rank) AS ranks FROM (SELECT rank, "
        "sum(hash(group_id, seq, created_ns, completed_ns)) AS same FROM recorded_numbers "
        "WHERE created_ns IS NOT NULL GROUP BY rank) GROUP BY same HAVING count(*) > 1 ORDER BY ranks LIMIT 1"
    )
    if not alike:
        return None
    ranks = alike[0]["ranks"]
    return "copies", ranks, f"those of {rank_list(ranks)} are copies of one record"


def _other_members(records: Records) -> _Doubt | None:
    """Ranks that list other members of a group than its members do: records of jobs of two sizes."""
    listed: dict[tuple[str, str, int], tuple[int, ...]] = {}
    for group in records.groups.values():
        for rank in group.positions.keys() & {*(group.members or ())}:
            listed[group.name, group.description, rank] = group.members or ()
    for group in records.groups.values():
        for rank in group.members or ():
            other = listed.get((group.name, group.description, rank), group.members)
            if other != group.members and group.positions:
                few = min((other or (), group.members or ()), key=len)
                return "members", [rank], (
                    f"in {group.label}, some list {rank_list([*few])} as all members, others list more or other ranks, "
                    "as records of two jobs do"
                )  # fmt: skip
    return None


def _undated(records: Records) -> _Doubt | None:
    ranks = [rank for rank, its in records.ranks.items() if its.latest_sign_ns is None and its.taken_ns is None]
    if not ranks:
        return None
    return "undated", ranks, f"no time in those of {rank_list(ranks)} shows that all are of one moment"


def _apart(records: Records) -> _Doubt | None:
    """Ranks that called what others had finished before: in one attempt, nobody finishes before all have called."""
    if all(record.live for record in records.ranks.values()):
        return None
    moments = {row["rank"]: row for row in records.query(_CALLED_AFTER)}
    late = {rank for rank, row in moments.items() if row["is_late"]}
    if late:
        apart_s = max(moments[rank]["after_ns"] for rank in late) / _NS
        ranks = min(late, moments.keys() - late or late, key=len)
        return "apart", ranks, (
            f"the calls of {rank_list(ranks)} are {apart_s:.0f} s apart from their peers' calls of the same "
            "collectives, as in another attempt of the job, or on a clock that is wrong"
        )  # fmt: skip
    signs = {rank: its.latest_sign_ns for rank, its in records.ranks.items() if its.latest_sign_ns is not None}
    if signs and max(signs.values()) - min(signs.values()) > _APART_S * _NS:
        rank = min(signs, key=lambda rank: signs[rank])
        minutes = (max(signs.values()) - signs[rank]) / _NS / 60
        return "apart", [rank], f"that of rank {rank} ends {minutes:.0f} min before others"
    return None


# Where no end of a collective is recorded (Gloo), its first call counts, if no collective was called together.
_CALLED_AFTER = f"""
WITH moments AS (
    SELECT group_id, seq, rank, min(created_ns) AS called_ns, max(completed_ns) AS ended_ns
    FROM recorded_numbers JOIN rules USING (call)
    WHERE together AND NOT is_p2p AND NOT closing AND created_ns IS NOT NULL GROUP BY ALL
), shared AS (
    SELECT group_id, seq, min(called_ns) AS first_ns, max(called_ns) AS last_ns, min(ended_ns) AS ended_ns
    FROM moments GROUP BY ALL HAVING count(*) > 1
), never_together AS (
    SELECT group_id FROM shared GROUP BY group_id HAVING min(last_ns - first_ns) > {int(STANDING_S * _NS)}
), bounds AS (
    SELECT s.group_id, s.seq, s.last_ns, coalesce(s.ended_ns, CASE WHEN n.group_id IS NOT NULL THEN s.first_ns END) AS
        bound_ns FROM shared s LEFT JOIN never_together n USING (group_id)
)
SELECT m.rank, bool_or(m.called_ns - b.bound_ns > {int(SETTLED_S * _NS)}) AS is_late,
    max(m.called_ns - b.bound_ns) AS after_ns
FROM moments m JOIN bounds b USING (group_id, seq)
WHERE b.last_ns - b.bound_ns > {int(SETTLED_S * _NS)} GROUP BY m.rank
"""


def _unfinished(records: Records, fronts: Fronts) -> _Doubt | None:
    """Ranks of unknown time whose records end in an unfinished operation: nothing shows how long they stood in it."""
    ranks = [rank for rank, its in fronts.status.items() if its not in _ENDED and records.ranks[rank].taken_ns is None]
    if not ranks:
        return None
    return "unfinished", ranks, f"{rank_list(ranks)} had not finished what {'it' if len(ranks) == 1 else 'they'} called"


def _cut(records: Records) -> _Doubt | None:
    """Ranks of unknown time whose counters show calls that they had not finished, or that their entries lack."""
    for group in records.groups.values():
        for rank, position in group.positions.items():
            if position.enqueued is None or position.enqueued < 0 or records.ranks[rank].taken_ns is not None:
                continue
            ends = [number for number in (position.completed, position.last_recorded) if number is not None]
            if ends and min(ends) < position.enqueued:
                why = (
                    f"by its counters, rank {rank} called collective {position.enqueued} of {group.label}, but its "
                    f"record shows only the end of {min(ends)}"
                )
                return "cut", [rank], why
    return None


def _ends_early(records: Records) -> _Doubt | None:
    """Ranks of unknown time without what peers finished: they may have stopped there, before peers went on."""
    newest = max((its.latest_sign_ns for its in records.ranks.values() if its.latest_sign_ns is not None), default=0)
    early = {
        rank
        for rank, its in records.ranks.items()
        if its.taken_ns is None and (its.latest_sign_ns is None or newest - its.latest_sign_ns > SETTLED_S * _NS)
    }
    ranks = {
        rank for group in records.groups.values() for rank in early & group.positions.keys() if group.is_overtaken(rank)
    }
    return ("ends_early", ranks, f"peers finished calls that those of {rank_list(ranks)} lack") if ranks else None


def _before_the_logs(records: Records) -> _Doubt | None:
    if any(record.live for record in records.ranks.values()):
        return None
    newest = max((its.latest_sign_ns for its in records.ranks.values() if its.latest_sign_ns is not None), default=None)
    (row,) = records.query("SELECT max(last_s) AS last FROM logs WHERE year_known AND NOT coalesce(left_out, false)")
    if newest is None or row["last"] is None:
        return None
    later_s = row["last"] - newest / _NS
    if later_s < _APART_S or not is_beyond_zones(later_s):
        return None
    return "before_logs", [], f"the job's log goes on for {later_s / 60:.0f} min after their last event"
