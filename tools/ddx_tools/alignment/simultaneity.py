"""Whether the records describe one moment, whether they cover all ranks, and whether they agree."""

from __future__ import annotations

from ddx_tools.alignment.records import SETTLED_S, Group, Records
from ddx_tools.alignment.waits import Wait, is_stale
from ddx_tools.model import Evidence, Finding, Severity, rank_list

_NS = 1e9
_MAX_EVIDENCE = 8


def missing_records(records: Records) -> Finding | None:
    """Ranks of the world, or of a group, that left no record."""
    expected = set(range(records.world_size or 0))
    for group in records.groups.values():
        expected.update(group.members or ())
    absent = sorted(expected - records.ranks.keys())
    if not absent:
        return None
    return Finding(
        code="records.rank_missing",
        severity=Severity.NOTICE,
        ranks=absent,
        summary=f"{rank_list(absent).capitalize()} left no flight record: what they do cannot be seen in the others'.",
        evidence=[Evidence(source="fr_dumps", quote=f"records of {rank_list(list(records.ranks))} only")],
        attributes={"ranks": absent, "recorded": len(records.ranks), "basis": "flight_records"},
    )


def different_moments(records: Records, waits: list[Wait]) -> Finding | None:
    """Dumps that were taken apart, by their times or because one finished what another has not begun."""
    taken = {rank: record.taken_ns for rank, record in records.ranks.items() if record.taken_ns is not None}
    spread_s = (max(taken.values()) - min(taken.values())) / _NS if len(taken) > 1 else 0.0
    stale = sorted(
        {
            rank
            for group in records.groups.values()
            for rank in group.ranks()
            if rank in records.ranks and is_stale(records, group, rank)
        }
    )
    early = sorted({rank for wait in waits for rank in wait.too_early})
    if spread_s < SETTLED_S and not stale and not early:
        return None
    ranks = stale or early or sorted(taken, key=lambda rank: taken[rank])[:1]
    return Finding(
        code="records.not_simultaneous",
        severity=Severity.NOTICE,
        ranks=ranks,
        summary=f"The flight records were taken at different moments ({rank_list(ranks)} earliest"
        + (f", {spread_s:.0f} s apart" if spread_s >= 1 else "")
        + "): a collective that is missing there may only not have come yet.",
        evidence=[
            Evidence(source=record.source, quote=f"rank {rank} taken_ns {record.taken_ns}")
            for rank, record in sorted(records.ranks.items())
        ][:_MAX_EVIDENCE],
        attributes={
            "spread_s": round(spread_s, 1),
            "stale": stale,
            "too_early": early,
            "basis": "flight_records",
        },
    )


def consistent(records: Records) -> Finding:
    """Said only if nothing else was: every rank has a record, they overlap, and they agree."""
    compared = sum(len(_common(group)) for group in records.groups.values())
    return Finding(
        code="records.consistent",
        severity=Severity.INFO,
        ranks=[],
        summary=f"The flight records of all {len(records.ranks)} ranks agree: "
        f"{compared} collectives compared, nothing pending for long.",
        evidence=[
            Evidence(source=record.source, quote=f"rank {rank}") for rank, record in sorted(records.ranks.items())
        ][:_MAX_EVIDENCE],
        attributes={"collectives": compared, "basis": "flight_records"},
    )


def overlap(records: Records) -> bool:
    """Whether there is anything to compare: a group whose members' buffers share sequence numbers."""
    return any(_common(group) for group in records.groups.values())


def _common(group: Group) -> set[int]:
    """Sequence numbers that all members which recorded anything share."""
    sequences = [entries.keys() for entries in group.collectives.values() if entries]
    return set.intersection(*map(set, sequences)) if len(sequences) > 1 else set()
