"""Findings about a job's steps in traces: where their time goes, and which rank keeps the others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.profile.matched import Matched, TraceComparison, comparison
from ddx_tools.probes.profile.samples import sample_findings

_MAX_EVIDENCE = 6
_WHOLE_STEP = 0.2
"""As a share of the median step: a shorter step was cut by the end of the trace."""
_CLEARLY = 0.02
"""As a share of a step: a rank later than this is clearly last."""
_OFTEN = 3
_LAST_SHARE = 0.75
_COSTS = 0.1
"""The least share of time lost by waiting for one rank that is worth reporting."""
_COSTS_WHATEVER_CHANCE = 0.3
"""The same, if so few steps were recorded that some rank may be last by chance."""
_CHANCE = 0.05
_MUCH_INPUT = 0.3
_MUCH = 0.15
_MUCH_EXPOSED = 0.35
_MUCH_IDLE = 0.4
_CAN_HIDE = 0.5
"""The share of computing that can overlap with communication: reduction runs beside backward, two thirds of a step."""
_WORDS = {
    "compute": "computing",
    "data": "fetching data",
    "wait": "idle after the host waited for the GPU",
    "host": "idle between operations",
}


@dataclass(frozen=True)
class ProfiledStep:
    """A step of a rank; times in ns. `waiting_ns` is the part of `exposed_ns` spent waiting for late peers."""

    rank: int | None
    pid: int | None
    """The process, if its rank is unknown and its file holds several."""
    step: int | None
    ns: int
    parts: dict[str, int]
    communication_ns: int
    waiting_ns: int
    source: str


def steps_of(store: Store, compared: TraceComparison) -> list[ProfiledStep]:
    """Return all whole steps: neither cut by the end of a trace nor empty."""
    rows = store.query("SELECT * FROM trace_steps WHERE step_ns > 0 ORDER BY rank, pid, start_ns")
    if not rows:
        return []
    usual = median(row["step_ns"] for row in rows)
    return [
        ProfiledStep(
            rank=row["rank"],
            pid=row["pid"],
            step=row["step"],
            ns=row["step_ns"],
            parts={name: row[f"{name}_ns"] for name in ("compute", "exposed", "copy", "data", "wait", "host")},
            communication_ns=row["communication_ns"],
            waiting_ns=int(row["exposed_ns"] * compared.waiting_share(row["rank"], row["step"])),
            source=row["source"],
        )
        for row in rows
        if row["step_ns"] >= _WHOLE_STEP * usual
    ]


def profile_findings(store: Store) -> list[Finding]:
    """Return all findings about the traces in a store, or about samples if there are no traces."""
    compared = store.derived(comparison)
    steps = steps_of(store, compared)
    if not steps:
        return sample_findings(store, alone=True)
    late = _arrives_late(compared, steps)
    found = [_parts(compared, steps), *_input_wait(steps), *late, *_input_slow(steps, late)]
    return [*found, *sample_findings(store, alone=False)]


def _finding(
    code: str, severity: Severity, ranks: list[int], summary: str, of: list[ProfiledStep], **facts: Any
) -> Finding:
    """A finding about the traces of some steps. It quotes no line, because its numbers are counted over all lines."""
    sources = list(dict.fromkeys(step.source for step in of))[:_MAX_EVIDENCE]
    return Finding(
        code=code,
        severity=severity,
        ranks=ranks,
        summary=summary,
        evidence=[Evidence(source=source) for source in sources],
        attributes={**facts, "basis": "profile"},
    )


def _parts(compared: TraceComparison, steps: list[ProfiledStep]) -> Finding:
    total = sum(step.ns for step in steps)
    shares = {name: sum(step.parts[name] for step in steps) / total for name in steps[0].parts}
    waiting = sum(step.waiting_ns for step in steps) / total
    hidden = sum(step.communication_ns for step in steps) / total - shares["exposed"]
    exposed = shares.pop("exposed") - waiting
    avoidable = min(exposed, max(0.0, _CAN_HIDE * shares["compute"] - hidden))
    is_compared = bool(compared.matched)
    idle = shares["host"] + shares["wait"]
    much = avoidable >= _MUCH or (is_compared and exposed >= _MUCH_EXPOSED) or idle >= _MUCH_IDLE
    said = [f"{_WORDS[name]} {100 * shares[name]:.0f} %" for name in ("compute", "data", "wait", "host")]
    said.insert(1, f"exposed communication {100 * exposed:.0f} %")
    said += [f"waiting for late ranks {100 * waiting:.0f} %"] if is_compared else []
    ranks = sorted({step.rank for step in steps if step.rank is not None})
    usual_s = median(step.ns for step in steps) / 1e9
    return _finding(
        "job.step_parts",
        Severity.NOTICE if much else Severity.INFO,
        ranks,
        f"A step takes {1000 * usual_s:.3g} ms (median of {len(steps)} steps of {rank_list(ranks, 'unknown ranks')}): "
        + ", ".join(said)
        + f"; {_hidden_words(hidden, exposed)}.",
        steps,
        step_s=round(usual_s, 6),
        **{name: round(share, 3) for name, share in shares.items()},
        exposed=round(exposed, 3),
        waiting=round(waiting, 3) if is_compared else None,
        hidden=round(hidden, 3),
        avoidable=round(avoidable, 3),
        steps=len(steps),
        ranks_compared=len(compared.ranks) if is_compared else None,
    )


def _hidden_words(hidden: float, exposed: float) -> str:
    if hidden + exposed < 0.005:
        return "there is hardly any communication"
    return f"{100 * hidden / (hidden + exposed):.0f} % of the communication overlaps with computation"


def _input_wait(steps: list[ProfiledStep]) -> Iterator[Finding]:
    """The input wait of the median rank: if only one rank waits for data, that does not describe the whole job."""
    by_rank = gathered(((step.rank, step.pid), step) for step in steps).values()
    shares = [(sum(step.parts["data"] for step in mine) / sum(step.ns for step in mine), mine) for mine in by_rank]
    shares.sort(key=lambda each: each[0])
    share, mine = shares[(len(shares) - 1) // 2]
    severity = Severity.NOTICE if share >= _MUCH_INPUT else Severity.INFO
    said = f"Waiting for data takes {100 * share:.0f} % of a step, according to the profile."
    yield _finding("job.input_wait", severity, [], said, mine, share=round(share, 3))


def _arrives_late(compared: TraceComparison, steps: list[ProfiledStep]) -> list[Finding]:
    """The rank that is clearly and repeatedly last, in the group that shows it best. Pipeline stages do not count."""
    usual_ns = median(step.ns for step in steps)
    by_group = gathered((each.group, each) for each in compared.matched)
    found: dict[int, Finding] = {}
    for group, matched in by_group.items():
        clear = [each for each in matched if each.late_ns >= _CLEARLY * usual_ns]
        rank, count = Counter(each.last for each in clear).most_common(1)[0] if clear else (-1, 0)
        mine = [each for each in clear if each.last == rank]
        # Waiting in several collectives at once counts once.
        lost_ns = union_ns([(each.start_ns[rank] - each.late_ns, each.start_ns[rank]) for each in mine])
        cost = lost_ns / max(1, sum(step.ns for step in steps if step.rank == rank))
        if count < _OFTEN or count < _LAST_SHARE * len(clear) or cost < _COSTS:
            continue
        steps_late, steps_clear = len({each.step for each in mine}), len({each.step for each in clear})
        if cost < _COSTS_WHATEVER_CHANCE and _chance(steps_late, steps_clear, len(compared.ranks)) > _CHANCE:
            continue
        if rank not in found or found[rank].attributes["last"] < count:
            of_rank = [step for step in steps if step.rank == rank]
            found[rank] = _late(group, mine, len(clear), len(matched), cost, of_rank)
    return list(found.values())


def _chance(times: int, of: int, ranks: int) -> float:
    """The probability that some rank is last this often if all are equally likely. Within a step, the same rank stays
    last."""
    tail = sum(comb(of, n) * (1 / ranks) ** n * (1 - 1 / ranks) ** (of - n) for n in range(times, of + 1))
    return min(1.0, ranks * tail)


def union_ns(intervals: list[tuple[int, int]]) -> int:
    """Return the length of the union of the intervals."""
    total, until = 0, None
    for start, end in sorted(intervals):
        begin = start if until is None else max(start, until)
        total += max(0, end - begin)
        until = end if until is None else max(until, end)
    return total


def _late(group: str, late: list[Matched], clear: int, matched: int, cost: float, mine: list[ProfiledStep]) -> Finding:
    where = f" of {group}" if group else ""
    rank, late_ns = mine[0].rank or 0, [each.late_ns for each in late]
    operations = {each.op for each in late}
    finding = _finding(
        "rank.arrives_late",
        Severity.WARNING,
        [rank],
        f"{rank_list([rank]).capitalize()} is last to enter {len(late_ns)} of the {clear} collectives{where} in which "
        f"ranks wait, by {median(late_ns) / 1e6:.3g} ms (median); that costs {100 * cost:.0f} % of the time.",
        mine,
        late_s=round(median(late_ns) / 1e9, 6),
        collectives=matched,
        last=len(late_ns),
        others_last=clear - len(late_ns),
        share=round(len(late_ns) / clear, 3),
        by="profile",
        operation=operations.pop() if len(operations) == 1 else None,
    )
    return finding.model_copy(update={"group": group or None})


def _input_slow(steps: list[ProfiledStep], late: list[Finding]) -> Iterator[Finding]:
    """Findings about late ranks that are late because they wait for data."""
    for finding in late:
        rank = finding.ranks[0]
        by_rank = _by_rank(steps)
        mine_s = median(step.parts["data"] for step in by_rank[rank]) / 1e9
        others_s = median(step.parts["data"] for step in steps if step.rank != rank) / 1e9
        if mine_s - others_s < 0.5 * finding.attributes["late_s"]:
            continue
        yield _finding(
            "rank.input_slow",
            Severity.WARNING,
            [rank],
            f"{rank_list([rank]).capitalize()} waits {1000 * mine_s:.3g} ms per step for its data; the others wait "
            f"{1000 * others_s:.3g} ms (medians).",
            by_rank[rank],
            input_s=round(mine_s, 6),
            others_s=round(others_s, 6),
            steps=len(by_rank[rank]),
            slowest_in=sum(step.parts["data"] / 1e9 > others_s for step in by_rank[rank]),
        )


def _by_rank(steps: list[ProfiledStep]) -> dict[int | None, list[ProfiledStep]]:
    return gathered((step.rank, step) for step in steps)
