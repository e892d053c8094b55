"""What the printed steps of a job say: how far it came, who is behind, whether it slows, and where numbers went bad.

Most programs print on rank 0 only. So ranks are compared only where all of them print the same kind of line.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Set

from ddx_tools.logs.crowd import Crowd, read_crowd
from ddx_tools.logs.event import Event
from ddx_tools.logs.first_nan import first_with_nan
from ddx_tools.logs.limit_expired import work_at_the_limit
from ddx_tools.logs.mean_gradient import mean_longer_than_parts
from ddx_tools.logs.rank_comparison import compared_by_rank
from ddx_tools.logs.reported import by_ranks
from ddx_tools.logs.run_comparison import ratio_between_runs
from ddx_tools.logs.slow_input import slow_input
from ddx_tools.logs.step_events import step_finding, step_number, step_position, step_unit
from ddx_tools.logs.step_numbers import non_finite_numbers, slowing_steps
from ddx_tools.logs.step_resources import growing_memory, waiting_for_input
from ddx_tools.model import Finding, Severity, rank_list
from ddx_tools.parsers.logs.step_lines import evaluates

_FEWEST_COUNTS = 3


def step_findings(events: list[Event], cut: Set[str]) -> list[Finding]:
    """Findings about printed progress. `cut`: the sources whose end could not be read."""
    steps = [event for event in events if event.kind == "step"]
    compared = [*compared_by_rank(events), *mean_longer_than_parts(events), *first_with_nan(events)]
    if not steps:
        return compared
    crowd = read_crowd(events)
    training = [event for event in steps if not event.details.get("own_work")]
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


# --- how far


def _progress(steps: list[Event], events: list[Event]) -> list[Finding]:
    """One finding of the lines that tell most: those with a loss, else those with a step, else progress bars."""
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


def _before_the_first(steps: list[Event]) -> list[Finding]:
    """One finding, if no step is printed yet and what was counted last is neither done nor a single line."""
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
            f"No step is printed yet; what is counted before it grows, to {done} of {total} at the last.",
            {"done": done, "total": total, "counters": len(grown)},
        )
    ]


def _worth(event: Event) -> int:
    if event.details.get("loss") is not None or event.details.get("non_finite"):
        return 0 if step_number(event) is not None else 3
    return 2 if event.details.get("bar") is not None else 1


# --- who is behind


def _behind(steps: list[Event], crowd: Crowd) -> list[Finding]:
    by_shape: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in steps:
        if event.details["what"] == "last" and len(event.ranks) == 1 and step_number(event) is not None:
            by_shape[event.attempt, event.details["shape"]].append(event)
    worst: tuple[float, Finding] | None = None
    for (_, shape), lasts in by_shape.items():
        furthest: dict[int, Event] = {}
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


def _steps_behind(shape: str, furthest: dict[int, Event], behind: dict[int, Event], phases: dict[int, str]) -> Finding:
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
        f"{rank_list(set(behind)).capitalize()} printed {low} last in `{shape}`, {rank_list(ahead)} {high}.",
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


def _last_phases(steps: list[Event]) -> dict[int, str]:
    """Of each rank, whether its last line is one of training or of evaluation."""
    last: dict[int, Event] = {}
    for event in steps:
        if len(event.ranks) == 1:
            known = last.setdefault(event.ranks[0], event)
            last[event.ranks[0]] = max(known, event, key=lambda each: each.row["source_line"])
    return {
        rank: "evaluation" if evaluates(event.details["shape"]) else "training" for rank, event in sorted(last.items())
    }
