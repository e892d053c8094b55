"""Findings from NCCL Inspector's files: ranks that have not finished what their peers have."""

from __future__ import annotations

from collections.abc import Iterator

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.nccl.finished import BASIS, FinishedByRanks, InspectedCommunicator, finished_by_ranks
from ddx_tools.analysis.nccl.operation_names import operation_name
from ddx_tools.analysis.nccl.process_rows import evidence
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, rank_list

_MOST_FINDINGS = 20
_MOST_QUOTES = 4


def finished_findings(store: Store) -> list[Finding]:
    """Return findings about ranks that finished fewer operations than peers, from NCCL Inspector files.

    Communicators that certainly make no progress are reported alone, if there are any. Otherwise the findings hold only
    if the job hangs.
    """
    if not store.holds_any(("nccl_finished",)):
        return []
    found = store.derived(finished_by_ranks)
    lagging = list(found.lagging)
    standing = [one for one in lagging if one.goes_on]
    return [one for each in standing or lagging for one in _finding(found, each, sure=bool(standing))][:_MOST_FINDINGS]


def _finding(found: FinishedByRanks, one: InspectedCommunicator, *, sure: bool) -> Iterator[Finding]:
    ranks = found.ranks_of(one, one.behind)
    others = found.ranks_of(one, [rank for rank in one.members if rank not in one.behind])
    if not ranks or not others:
        return
    rows = [one.members[rank].row_of(one.operation) for rank in sorted(one.members, key=lambda r: r not in one.behind)]
    shown = FindingPlace([evidence(row) for row in rows[:_MOST_QUOTES]])
    at = Where(BASIS, one.label, operation=operation_name(one.operation))
    sentence = found.sentence(one)
    chain = [f"{sentence}."]
    if sure:
        silent_s = max(one.members[rank].silent_s for rank in one.goes_on)
        meanwhile = f"while members went on in other communicators for {silent_s:.0f} s"
        says = f"{sentence}. No rank finished anything in it {meanwhile}."
        yield raising.waited_for(
            "stands_still", ranks, others, at, shown, says=says, chain=chain, sole=True, tie=False, moving=False
        )
    else:
        says = f"{sentence}. If the job hung when these files were copied, all others wait for {rank_list(set(ranks))}."
        yield raising.if_hung("stands_still", ranks, at, shown, says=says, chain=chain, waiting=len(others))
