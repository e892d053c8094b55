"""Findings about the records as a set: whether they are from one moment, cover all ranks, and agree."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace
from ddx_tools.analysis.collectives.records.progress import Behind
from ddx_tools.analysis.collectives.records.quotes import shown, where
from ddx_tools.analysis.collectives.records.records import Group, Records
from ddx_tools.analysis.collectives.records.usual_waits import SETTLED_S
from ddx_tools.analysis.collectives.records.waits import Recorded
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.files.names import shown as name
from ddx_tools.model.grouping import gathered

_NS = 1e9
_MAX_EVIDENCE = 8
_MAX_LEFT_OUT = 3
_MAX_VERSION = 40


def missing_records(records: Records) -> Finding | None:
    """A finding if some ranks left no flight record."""
    absent = sorted(records.absent)
    if not absent:
        return None
    return raising.finding(
        "records.rank_missing",
        Severity.NOTICE,
        absent,
        f"{rank_list(absent).capitalize()} left no flight record{_of_this_run(records, absent)}; the other records "
        "cannot show what they do.",
        where(None),
        FindingPlace([*_last_calls_with(records, records.absent), Evidence(source="fr_dumps")]),
        recorded=len(records.ranks),
    )


def _of_this_run(records: Records, absent: Iterable[int]) -> str:
    return " of this run" if records.of_other_runs.intersection(absent) else ""


def _last_calls_with(records: Records, absent: Set[int]) -> list[Evidence]:
    """The last calls of other ranks in groups that absent ranks are members of."""
    groups = [group.id for group in records.groups.values() if absent & {*group.ranks()}]
    if not groups:
        return []
    rows = records.query(
        "SELECT rank, arg_max(group_id, record_id) AS group_id, max(record_id) AS record_id FROM recorded_numbers "
        f"WHERE group_id IN ({', '.join(map(str, groups))}) GROUP BY rank ORDER BY rank LIMIT {_MAX_EVIDENCE}"
    )
    last = records.entries_of((row["rank"], row["group_id"], row["record_id"]) for row in rows)
    return [entry.evidence() for entry in last]


def different_moments(
    records: Records, holds: list[Recorded], behind: list[Behind], frozen: Set[int]
) -> Finding | None:
    """Return a finding if the flight records were taken at different moments, else None.

    Their times differ, or some records end before a call that peers' records show as made or finished. `frozen` ranks
    are not counted as early for lacking what peers finished.
    """
    taken = {
        rank: records.true_ns(rank, record.taken_ns)
        for rank, record in records.ranks.items()
        if record.taken_ns is not None
    }
    spread_s = (max(taken.values()) - min(taken.values())) / _NS if len(taken) > 1 else 0.0
    stale = sorted({each.rank for each in behind if not each.moment} - frozen)
    early = sorted({rank for hold in holds for rank in hold.too_early})
    if spread_s < SETTLED_S and not stale and not early:
        return None
    ranks = stale or early or sorted(taken, key=lambda rank: taken[rank])[:1]
    evidence = [Evidence(source=records.ranks[rank].source) for rank in ranks[:_MAX_EVIDENCE]]
    return raising.finding(
        "records.not_simultaneous",
        Severity.NOTICE,
        ranks,
        f"The flight records were taken at different moments ({rank_list(ranks)} earliest"
        + (f", {spread_s:.0f} s apart" if spread_s >= 1 else "")
        + "): a collective missing in the earliest may simply not have been called yet.",
        where(None),
        FindingPlace(evidence),
        spread_s=round(spread_s, 1),
        stale=stale,
        too_early=early,
        share=round(len(stale) / len(records.ranks), 3),
    )


def completion_frozen(behind: list[Behind], frozen: Set[int]) -> Finding | None:
    """Return a finding about ranks whose records show a collective unfinished that peers finished.

    Only `frozen` ranks count: their gap is not explained by an earlier record. None if there are none.
    """
    still = [each for each in behind if each.rank in frozen and each.entry is not None]
    if not still:
        return None
    ranks = sorted({each.rank for each in still})
    entries = [each.entry for each in still if each.entry is not None]
    first = entries[0]
    later = any(each.frozen for each in still)
    return raising.finding(
        "collective.completion_frozen",
        Severity.FAILURE,
        ranks,
        f"{rank_list(ranks).capitalize()} still {'has' if len(ranks) == 1 else 'have'} {first.op} (collective "
        f"{first.seq} of {still[0].group.label}) unfinished, although peers finished it"
        + (" long before the record was taken." if later else "; the peers agree with each other and all wait for it."),
        where(still[0].group, first.seq, first.op),
        shown(entries),
        simultaneous="yes" if later else "unknown",
    )


def other_attempts(records: Records) -> Finding | None:
    """A notice about dumps that were not compared because they are from another attempt or an earlier moment."""
    if not records.left_out:
        return None
    compared = "Only the flight records of one attempt were compared. " if records.ranks else ""
    said = compared + " ".join(records.left_out[:_MAX_LEFT_OUT])
    return raising.finding(
        "records.left_out",
        Severity.NOTICE,
        records.of_other_runs,
        said,
        where(None),
        FindingPlace([Evidence(source="fr_dumps")]),
    )


def other_versions(records: Records) -> Finding | None:
    """A notice about dumps of one backend that name different versions of their library or format."""
    rows = records.query(
        "SELECT DISTINCT d.rank, d.library, d.version, coalesce(d.backend, '') AS backend FROM fr_dumps d "
        "JOIN chosen_dumps USING (dump) ORDER BY ALL"
    )
    differing = []
    few: set[int] = set()
    for column, what in (("library", "library"), ("version", "format")):
        named = gathered((row["backend"], row) for row in rows if row[column])
        for backend, mine in named.items():
            ranks_of = gathered((row[column], row["rank"]) for row in mine)
            if len(ranks_of) > 1:
                usual = max(ranks_of, key=lambda version: len(ranks_of[version]))
                few |= {rank for version, ranks in ranks_of.items() if version != usual for rank in ranks}
                versions = " and ".join(f"{name(one, _MAX_VERSION)} ({rank_list(r)})" for one, r in ranks_of.items())
                differing.append(f"{backend} {what} {versions}".strip())
    if not differing:
        return None
    return raising.finding(
        "records.other_version",
        Severity.NOTICE,
        few,
        f"The flight records name different versions: {'; '.join(differing)}.",
        where(None),
        FindingPlace([Evidence(source=records.ranks[rank].source) for rank in sorted(few)[:_MAX_EVIDENCE]]),
    )


def consistent(records: Records) -> Finding:
    """The finding made only if there is no other: every rank has a record, and the records overlap and agree."""
    compared = sum(len(_common(group)) for group in records.groups.values())
    ranks = sorted(records.ranks.items())[:_MAX_EVIDENCE]
    return raising.finding(
        "records.consistent",
        Severity.INFO,
        [],
        f"The flight records of all {len(records.ranks)} ranks agree: "
        f"{compared} collectives compared, nothing pending for long.",
        where(None),
        FindingPlace([Evidence(source=record.source) for _, record in ranks]),
        collectives=compared,
    )


def overlap(records: Records) -> bool:
    """Whether there is anything to compare: a group whose members' ring buffers share sequence numbers."""
    return any(_common(group) for group in records.groups.values())


def _common(group: Group) -> range:
    """The sequence numbers shared by all members that recorded anything."""
    recorded = [
        (position.first_recorded, position.last_recorded)
        for position in group.positions.values()
        if position.first_recorded is not None and position.last_recorded is not None
    ]
    if len(recorded) < 2:
        return range(0)
    return range(max(first for first, _ in recorded), min(last for _, last in recorded) + 1)
