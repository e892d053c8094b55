"""Findings from NCCL's RAS reports. RAS counts launches, so in a hang it reports what all ranks launched as fine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddx_tools.analysis.collectives import findings as raising
from ddx_tools.analysis.collectives.findings import FindingPlace, Where
from ddx_tools.analysis.nccl.process_rows import Row, evidence
from ddx_tools.analysis.nccl.ras_polls import BASIS, STANDS_S, RasCall, RasCommunicator, RasHold, RasPolls, ras_polls
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.model.wording import capital

_MOST_EVIDENCE = 8
_MOST_FINDINGS = 20
_BLIND = "RAS only counts launches, so a busy job looks mismatched too: query it again and compare."
_MEANINGS = {
    "dead": (
        "nccl_ras_dead",
        "RAS could not reach the process for 60 s: it ended, is stopped, or its host is unreachable.",
    ),
    "missing": ("nccl_ras_missing", "RAS has no data from these ranks: their process does not answer."),
    "async_error": ("nccl_ras_error", "RAS reports that NCCL returned an error to these ranks."),
}


def ras_findings(store: Store) -> list[Finding]:
    """Findings about ranks that launched fewer operations, processes that do not answer, and errors."""
    polls = store.derived(ras_polls)
    found = _of_polls(polls) if polls.polls > 1 else []
    if not polls.moving and not (polls.solved and polls.solved.roots):
        # If counts change between two answers, a mismatch at one moment means nothing.
        uneven = [group for group in polls.communicators if not (group.moved or polls.at_work(group))]
        found += [one for group in uneven for call in group.behind for one in _behind(polls, group, call)]
    return found[:_MOST_FINDINGS] + _told(store, polls)[:_MOST_FINDINGS]


def _of_polls(polls: RasPolls) -> list[Finding]:
    if polls.moving:
        ranks = sorted(polls.ranks.values())
        going = [one for one in polls.communicators if one.moved]
        return [
            Finding(
                code="job.progressing",
                severity=Severity.INFO,
                ranks=ranks,
                summary=f"The ranks launched more collectives in {len(going)} of {len(polls.communicators)} "
                f"communicators {_meanwhile(polls)}: the job is running",
                evidence=[evidence(row) for row in going[0].rows[-1][:1]],
                attributes={"basis": BASIS, "brought": polls.span_s is None},
            )
        ]
    graph = polls.solved
    if graph is None or not graph.roots:
        return []
    return [*_behind_at_root(polls), *_waited_for(polls)]


def _meanwhile(polls: RasPolls) -> str:
    return f"across {polls.polls} RAS answers" + (f" within {polls.span_s:.0f} s" if polls.span_s is not None else "")


def _hangs(polls: RasPolls) -> bool:
    """Whether no count has increased, for long enough to call it a hang."""
    moved = any(one.moved for one in polls.communicators)
    return not moved and (polls.span_s or 0.0) >= STANDS_S


def _behind_at_root(polls: RasPolls) -> Iterator[Finding]:
    """One finding per communicator in which a root is behind: which rank, in which operation, and by how much."""
    graph = polls.solved
    assert graph is not None
    for hold in _at_roots(polls):
        late = [number for number in hold.blockers if number in graph.roots]
        call = hold.of.behind[0]
        waiting = polls.ranks_of(list(hold.waiting))
        ranks = polls.ranks_of(late)
        yield raising.missing(
            Where(BASIS, hold.of.label, operation=call.name),
            ranks,
            waiting,
            _shown(hold),
            severity=Severity.FAILURE if _hangs(polls) else Severity.WARNING,
            simultaneous="yes" if polls.span_s is not None else "unknown",
            last_seq={rank: min(call.by_count) for rank in ranks},
            balance=len(hold.waiting) - len(late),
            unclear=graph.tie,
            says=f"{_who(polls, late)} launched {_counts(hold)}; the other {len(hold.waiting)} of "
            f"{hold.of.label} launched more, and no rank in it launched anything {_meanwhile(polls)}.",
            enqueue_only=True,
        )


def _waited_for(polls: RasPolls) -> Iterator[Finding]:
    graph = polls.solved
    assert graph is not None
    for state, numbers in graph.by_state().items():
        ranks = polls.ranks_of(numbers)
        holds = [hold for hold in _at_roots(polls) if set(hold.blockers) & set(numbers)]
        if not ranks or not holds:
            continue
        # Launch counts do not show sends, receives or what the program is in, so it may still have something pending.
        yield raising.waited_for(
            "unseen" if state == "outside" else state,
            ranks,
            polls.ranks_of(graph.victims),
            Where(BASIS, holds[0].of.label, operation=holds[0].at.operation),
            _shown(holds[0]),
            place=False,
            chain=[_sentence(polls, hold) for hold in graph.holds[:_MOST_EVIDENCE]],
            sole=len(graph.by_state()) == 1,
            tie=graph.tie,
            simultaneous="yes" if polls.span_s is not None else "unknown",
            moving=not _hangs(polls),
        )


def _at_roots(polls: RasPolls) -> list[RasHold]:
    graph = polls.solved
    return [hold for hold in graph.holds if set(hold.blockers) & graph.roots.keys()] if graph else []


def _sentence(polls: RasPolls, hold: RasHold) -> str:
    waiting = polls.ranks_of(list(hold.waiting))
    blockers = [*hold.blockers, *hold.unknown]
    who = rank_list(waiting).capitalize() if waiting else f"{len(hold.waiting)} processes"
    for_whom = rank_list(polls.ranks_of(blockers)) if polls.ranks_of(blockers) else polls.words(blockers)
    return f"{who} wait{'' if len(hold.waiting) > 1 else 's'} in {hold.of.label} ({hold.op}) for {for_whom}."


def _who(polls: RasPolls, numbers: list[int]) -> str:
    ranks = polls.ranks_of(numbers)
    named = polls.words(numbers)
    return f"{rank_list(ranks).capitalize()} ({named})" if ranks else capital(named)


def _counts(hold: RasHold) -> str:
    """The lagging counts in words, one per operation: `811 all_reduce (others up to 812)`."""
    said = [f"{min(call.by_count)} {call.name} (others up to {call.most})" for call in hold.of.behind[:4]]
    return ", ".join(said)


def _shown(hold: RasHold) -> FindingPlace:
    rows = [row for row in hold.of.rows[-1] if row["status"] == "MISMATCH"] or hold.of.rows[-1]
    return FindingPlace([evidence(row) for row in rows[:_MOST_EVIDENCE]])


# --- a single answer, or several that do not show which ranks make no progress


def _behind(polls: RasPolls, group: RasCommunicator, call: RasCall) -> Iterator[Finding]:
    """A finding about the ranks that launched an operation less often than the others."""
    low = {count: said for count, said in call.by_count.items() if count < call.most}
    late = sum(many for _, many in low.values())
    ahead = call.by_count[call.most][1]
    listed = sorted({rank for ranks, _ in low.values() for rank in ranks})
    complete = len(listed) == late
    seats = [group.seats[rank] for rank in listed if rank in group.seats]
    known = [polls.ranks[seat] for seat in seats if seat in polls.ranks]
    ranks = sorted(known) if complete and len(known) == len(listed) else _as_whole(polls, group, listed, complete)
    who = rank_list(listed).capitalize() if complete else f"{late} ranks (which RAS does not list)"
    again = _BLIND if polls.polls < 2 else f"Whether that changes {_meanwhile(polls)} is unknown."
    if group.moved is False:
        again = f"No rank in it launched anything {_meanwhile(polls)}."
    yield raising.missing(
        Where(BASIS, group.label, operation=call.name if call.operation else None),
        ranks,
        [],
        FindingPlace([evidence(row) for row in group.rows[-1] if row["operation"] == call.operation][:_MOST_EVIDENCE]),
        severity=Severity.WARNING,
        simultaneous="unknown",
        last_seq={rank: count for count, (of, _) in low.items() for rank in of} if ranks else {},
        balance=ahead - late,
        says=f"{who} launched fewer {call.name} than the other {ahead} in {group.label}: "
        f"{', '.join(map(str, sorted(low)[:6]))} versus {call.most}. {again}",
        enqueue_only=True,
    )


def _as_whole(polls: RasPolls, group: RasCommunicator, listed: list[int], complete: bool) -> list[int]:
    """The listed ranks as global ranks if the communicator spans the whole job, judged by its size; else none."""
    return listed if complete and group.nranks == polls.gpus else []


def _told(store: Store, polls: RasPolls) -> list[Finding]:
    """Findings from the last answer about unresponsive processes and errors."""
    rows = store.query("SELECT * FROM nccl_ras ORDER BY taken_s, source, source_line")
    last = rows[-1]["source"] if rows else None
    others: dict[tuple[Any, ...], list[Row]] = gathered(
        ((row["communicator"], row["what"], row["value"]), row)
        for row in rows
        if row["source"] == last and row["what"] in _MEANINGS and (row["ranks"] or row["pid"] is not None)
    )
    return [_said(together, polls) for together in others.values()]


def _said(rows: list[Row], polls: RasPolls) -> Finding:
    first = rows[0]
    signature, meaning = _MEANINGS[first["what"]]
    listed = sorted({rank for row in rows for rank in row["ranks"] or ()})
    processes = [f"process {row['pid']} on {row['host']}" for row in rows if row["pid"] is not None]
    who = rank_list(listed).capitalize() if listed else ", ".join(processes[:6])
    group = polls.of(first["communicator"], first["nranks"])
    known = [polls.ranks.get(group.seats[rank]) for rank in listed if rank in group.seats] if group else []
    ranks = sorted(rank for rank in known if rank is not None) if known and None not in known else []
    if not ranks and first["communicator"] and first["nranks"] == polls.gpus:
        ranks = listed
    return Finding(
        code="log.signature",
        severity=Severity.WARNING,
        ranks=ranks,
        hosts=sorted({row["host"] for row in rows if row["host"]}),
        group=f"communicator {first['communicator']}" if first["communicator"] else None,
        summary=f"{who}: {meaning}" + (f" ({first['value']})" if first["value"] else ""),
        evidence=[evidence(row) for row in rows[:_MOST_EVIDENCE]],
        attributes={
            "signature": signature,
            "role": "secondary",
            "meaning": meaning,
            "pids": [row["pid"] for row in rows if row["pid"] is not None][:64],
            "count": len(rows),
            "basis": BASIS,
        },
    )
