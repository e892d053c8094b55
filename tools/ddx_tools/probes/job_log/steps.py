"""Findings about a job's printed steps: how far it got, which ranks are behind, and where numbers went bad.

Most programs print on rank 0 only, so ranks are compared only if all of them print the same kind of line.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import combinations

from ddx_tools.analysis.log_events.attribution import by_ranks
from ddx_tools.analysis.log_events.known_ranks import Crowd, read_crowd
from ddx_tools.analysis.log_events.log_event import (
    LogEvent,
    is_training_step,
    step_finding,
    step_number,
    step_position,
    step_unit,
)
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.evaluation_words import evaluates
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.job_log.limit_expired import work_at_the_limit
from ddx_tools.probes.job_log.rank_comparison import compared_by_rank, measured, values_by_step
from ddx_tools.probes.job_log.step_numbers import (
    growing_memory,
    non_finite_numbers,
    slow_input,
    slowing_steps,
    waiting_for_input,
)

_FEWEST_COUNTS = 3


def step_findings(events: list[LogEvent], cut: Set[str]) -> list[Finding]:
    """Return the findings about printed progress. `cut`: the sources whose end could not be read."""
    steps = [event for event in events if event.kind == "step"]
    compared = [*compared_by_rank(events), *mean_longer_than_parts(events), *first_with_nan(events)]
    if not steps:
        return compared
    crowd = read_crowd(events)
    training = list(filter(is_training_step, steps))
    return [
        *non_finite_numbers(training),
        *_behind([event for event in training if event.row["source"] not in cut], crowd),
        *work_at_the_limit(steps, events, crowd),
        *slowing_steps(training),
        *growing_memory(training),
        *waiting_for_input(training),
        *slow_input(training),
        *ratio_between_runs(training),
        *compared,
        *(_progress(training, events) if training else _before_the_first(steps)),
    ]


# --- how far the job got


def _progress(steps: list[LogEvent], events: list[LogEvent]) -> list[Finding]:
    """One finding about the most telling lines: those with a loss, else those with a step, else progress bars."""
    best = min((_worth(event) for event in steps), default=9)
    told = [event for event in steps if _worth(event) == best and step_number(event) is not None]
    lasts = [event for event in told if event.details["what"] == "last"]
    if not lasts:
        return []
    last_step: dict[int | None, int] = {}
    for event in lasts:
        rank = event.ranks[0] if len(event.ranks) == 1 else None
        last_step[rank] = max(last_step.get(rank, 0), step_number(event) or 0)
    seconds = [point[1] for event in lasts for point in event.details.get("points") or []]
    final = max(lasts, key=step_position)
    facts = {
        "last_step": by_ranks(last_step),
        "first_step": min(step_number(event) or 0 for event in told),
        "total": final.details.get("total"),
        "epoch": final.details.get("epoch"),
        "loss": final.details.get("loss"),
        "step_s": round(statistics.median(seconds), 4) if seconds else None,
        "resumed": True if any(event.row["code"] == "training_resumed" for event in events) else None,
    }
    total = f" of {facts['total']}" if facts["total"] else ""
    epoch = f" of epoch {facts['epoch']:g}" if facts["epoch"] is not None else ""
    return [
        step_finding(
            "job.progress",
            Severity.INFO,
            lasts,
            f"The last {step_unit(final)} printed is {step_number(final)}{total}{epoch}.",
            facts,
        )
    ]


def _before_the_first(steps: list[LogEvent]) -> list[Finding]:
    """One finding if no step is printed yet, and the last count is unfinished and has several lines."""
    lasts = [event for event in steps if event.details["what"] == "last" and event.details.get("own_work")]
    grown = [event for event in lasts if event.details["lines"] >= _FEWEST_COUNTS]
    latest = max(lasts, key=lambda event: event.row["source_line"], default=None)
    if latest not in grown or latest is None or latest.details["step"] >= latest.details["total"]:
        return []
    done, total = latest.details["step"], latest.details["total"]
    return [
        step_finding(
            "job.preparing",
            Severity.INFO,
            [latest, *(event for event in grown if event is not latest)],
            f"No training step yet; preprocessing is making progress ({done} of {total}).",
            {"done": done, "total": total, "counters": len(grown)},
        )
    ]


def _worth(event: LogEvent) -> int:
    if event.details.get("loss") is not None or event.details.get("non_finite"):
        return 0 if step_number(event) is not None else 3
    return 2 if event.details.get("bar") is not None else 1


# --- ranks that are behind


def _behind(steps: list[LogEvent], crowd: Crowd) -> list[Finding]:
    by_shape = gathered(
        ((event.attempt, event.details["shape"]), event)
        for event in steps
        if event.details["what"] == "last" and len(event.ranks) == 1 and step_number(event) is not None
    )
    worst: tuple[float, Finding] | None = None
    for (_, shape), lasts in by_shape.items():
        furthest: dict[int, LogEvent] = {}
        for event in lasts:
            known = furthest.setdefault(event.ranks[0], event)
            furthest[event.ranks[0]] = max(known, event, key=step_position)
        if len(furthest) < 2 or furthest.keys() != crowd.everybody:
            continue
        top = max(step_position(event) for event in furthest.values())
        behind = {rank: event for rank, event in furthest.items() if step_position(event) < top}
        if behind and (worst is None or len(behind) < worst[0]):
            worst = len(behind), _steps_behind(shape, furthest, behind, _last_phases(steps))
    return [worst[1]] if worst else []


def _steps_behind(
    shape: str, furthest: dict[int, LogEvent], behind: dict[int, LogEvent], phases: dict[int, str]
) -> Finding:
    last = {rank: step_number(event) for rank, event in furthest.items()}
    epochs = {rank: event.details["epoch"] for rank, event in furthest.items() if "epoch" in event.details}
    ahead = sorted(furthest.keys() - behind.keys())
    numbers = [number for number in last.values() if number is not None]
    low = ", ".join(dict.fromkeys(str(step_number(event)) for _, event in sorted(behind.items())))
    high = step_number(furthest[ahead[0]])
    minority = len(behind) < len(ahead)
    return step_finding(
        "rank.steps_behind",
        Severity.NOTICE,
        [*behind.values(), furthest[ahead[0]]],
        f"The last value in lines `{shape}` is {low} on {rank_list(set(behind))} and {high} on {rank_list(ahead)}.",
        {
            "last_step": by_ranks(last),
            "epoch": by_ranks(epochs) if len(set(epochs.values())) > 1 else next(iter(epochs.values()), None),
            "difference": max(numbers) - min(numbers),
            "phase": by_ranks(phases) if len(set(phases.values())) > 1 else None,
            "minority": minority,
            "tie": len(behind) == len(ahead),
        },
        ranks=sorted(behind),
    )


def _last_phases(steps: list[LogEvent]) -> dict[int, str]:
    """For each rank, whether its last line is about training or evaluation."""
    last: dict[int, LogEvent] = {}
    for event in steps:
        if len(event.ranks) == 1:
            known = last.setdefault(event.ranks[0], event)
            last[event.ranks[0]] = max(known, event, key=lambda each: each.row["source_line"])
    return {
        rank: "evaluation" if evaluates(event.details["shape"]) else "training" for rank, event in sorted(last.items())
    }


# --- gradient norms of ranks against that of their mean: a mean is never longer than the longest of its parts

_LONGER = 1.1
_SAME = 1e-4
_LEAST_STEPS = 2


def mean_longer_than_parts(events: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding if the printed mean gradient exceeds every rank's own, at all steps that print both.

    By the triangle inequality ‖mean(g)‖ ≤ max ‖g‖; a sum over N ranks may be N times as long. A number that differs
    between ranks was not reduced over them (an average over time, for example) and shows nothing.
    """
    kinds = values_by_step(events)
    own, mean = kinds.get("own_grad_norm", {}), kinds.get("mean_grad_norm", {})
    told: list[tuple[int | None, float, list[LogEvent]]] = []
    for key in own.keys() & mean.keys():
        parts = [value for event in own[key].values() if (value := measured(event)) is not None]
        means = [value for event in mean[key].values() if (value := measured(event)) is not None]
        if len(parts) < 2 or not means or min(parts) <= 0:
            continue
        if max(means) - min(means) > _SAME * max(means) or max(means) < _LONGER * max(parts):
            return
        told.append((key[1], means[0] / statistics.mean(parts), list(own[key].values())))
    if len(told) < _LEAST_STEPS:
        return
    step, ratio, events_at = min(told, key=lambda each: each[0] or 0)
    at = f" at step {step}" if step is not None else ""
    yield step_finding(
        "numerics.mean_longer_than_parts",
        Severity.NOTICE,
        events_at,
        f"The printed mean gradient is {ratio:.2g} times as long as the ranks' own{at}: a mean is never longer than "
        "the longest of them, but a sum can be.",
        {"what": "grad_norm", "ratio": round(ratio, 3), "step": step, "ranks_compared": len(events_at)},
    )


# --- logs of two runs, compared: a gradient norm that is a whole multiple of the other's at equal loss

_SAME_LOSS = 0.003
_WHOLE = 0.005
_MOST_RUNS = 16
_LARGEST_GROUP = 65_536


def ratio_between_runs(steps: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding if two logs print, at the same step and loss, gradient norms whose ratio is a whole number above
    1."""
    firsts = [
        event
        for event in steps
        if event.details.get("what") == "first" and event.details.get("loss") and event.details.get("grad_norm")
    ][:_MOST_RUNS]
    found = [told for one, other in combinations(firsts, 2) if (told := _ratio(one, other))]
    if not found:
        return
    ratio, low, high = max(found, key=lambda each: each[0])
    step = low.details.get("step")
    yield step_finding(
        "numerics.ratio_between_runs",
        Severity.NOTICE,
        [high, low],
        f"At step {step}, two runs print the same loss, but one gradient norm is {ratio} times the other.",
        {"what": "grad_norm", "ratio": ratio, "step": step},
    )


def _ratio(one: LogEvent, other: LogEvent) -> tuple[int, LogEvent, LogEvent] | None:
    low, high = sorted((one, other), key=lambda event: event.details["grad_norm"])
    if one.row["source"] == other.row["source"] or one.ranks != other.ranks:
        return None
    if one.details.get("step") is None or one.details.get("step") != other.details.get("step"):
        return None
    if low.details["grad_norm"] <= 0 or abs(one.details["loss"] / other.details["loss"] - 1) > _SAME_LOSS:
        return None
    ratio = high.details["grad_norm"] / low.details["grad_norm"]
    if ratio > _LARGEST_GROUP:
        return None
    whole = round(ratio)
    return (whole, low, high) if whole >= 2 and abs(ratio / whole - 1) <= _WHOLE else None


# --- the rank that had NaN before a reduction spread it: the first with NaN in its own values

_Place = tuple[int, int]
"""(step, number of lines with values between the last line that names a step and this one)"""


@dataclass
class _OfRank:
    """One rank's printed values of its own gradient, by place."""

    nan: dict[_Place, LogEvent]
    finite: dict[_Place, LogEvent]

    @property
    def bad_since(self) -> _Place | None:
        """The place of its first NaN after which no later step was finite: a working loss scaler produces single
        NaNs."""
        recovered = max((step for step, _ in self.finite), default=-1)
        return min((place for place in self.nan if place[0] >= recovered), default=None)

    @property
    def lasting(self) -> bool:
        """Whether the NaN lasts: more NaN follow the first, up to its last value."""
        since = self.bad_since
        return since is not None and max(self.nan) > max([since, *self.finite])

    def was_finite_at(self, step: int) -> bool:
        """Return whether it printed a finite value at this step or a later one."""
        return any(own >= step for own, _ in self.finite)


def first_with_nan(events: list[LogEvent]) -> Iterator[Finding]:
    """Yield a finding about the only rank whose own gradient was NaN while that of all other printing ranks was finite.

    After the reduction, all ranks have it. Infinite values do not count: a working loss scaler produces them.
    `first_rank` is set if the NaN lasted; if the log ends with the first NaN, that is unknown.
    """
    own = [event for event in events if event.kind == "value" and event.details["what"] == "own_grad_norm"]
    ranks = _by_rank([event for event in own if event.attempt == max(each.attempt for each in own)])
    begun = {rank: since for rank, of_rank in (ranks or {}).items() if (since := of_rank.bad_since)}
    if not ranks or len(ranks) < 2 or not begun:
        return
    named = {ranks[rank].nan[since].details.get("step") is not None for rank, since in begun.items()}
    # Lines without a step are compared only after the same named step: other ranks' lines may have been left out.
    if len(named) > 1 or (named == {False} and len({step for step, _ in begun.values()}) > 1):
        return
    earliest = min(begun.values())
    first = [rank for rank, since in begun.items() if since == earliest]
    others = [of_rank for rank, of_rank in ranks.items() if rank not in first]
    if len(first) > 1 or not all(of_rank.was_finite_at(earliest[0]) for of_rank in others):
        return
    (rank,) = first
    lasting = ranks[rank].lasting
    where = f"{'at' if named == {True} else 'after'} step {earliest[0]}"
    yield step_finding(
        "numerics.non_finite",
        Severity.WARNING if lasting else Severity.NOTICE,
        [ranks[rank].nan[earliest]],
        f"Rank {rank}'s own gradient is NaN {where}, whereas that of all {len(others)} other printing ranks is "
        f"finite{'' if lasting else '; the log ends before it shows whether that lasted'}.",
        {
            "what": "own_grad_norm",
            "value": "nan",
            "step": earliest[0],
            "first_rank": rank if lasting else None,
            "lasting": lasting or None,
        },
    )


def _by_rank(events: list[LogEvent]) -> dict[int, _OfRank] | None:
    """The printed values per rank; None if the place of a NaN is unknown."""
    found: dict[int, _OfRank] = defaultdict(lambda: _OfRank({}, {}))
    for event in events:
        if len(event.ranks) != 1:
            continue
        is_nan, place = event.details["value"].lower() == "nan", _place(event)
        if place is not None:
            of_rank = found[event.ranks[0]]
            (of_rank.nan if is_nan else of_rank.finite).setdefault(place, event)
        elif is_nan:
            return None
    return found


def _place(event: LogEvent) -> _Place | None:
    step, behind = event.details.get("step"), event.details.get("behind")
    if step is not None:
        return step, 0
    return (behind[0], behind[1]) if behind else None
