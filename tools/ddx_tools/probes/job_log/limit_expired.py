"""Findings about the work that ranks were doing when a collective timed out, from progress bars and counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import isclose

from ddx_tools.analysis.log_events.known_ranks import Crowd
from ddx_tools.analysis.log_events.log_event import LogEvent, is_training_step, step_finding
from ddx_tools.model.diagnosis import Finding, Severity, rank_list

_LEAST_LIMIT_S = 60.0
"""The assumed timeout if it is unknown; with a shorter one, a few seconds of work would mean nothing."""
_ALIKE = 0.15
"""The relative difference allowed between the length of a wait and of the work that was waited for."""


def work_at_the_limit(steps: list[LogEvent], events: list[LogEvent], crowd: Crowd) -> Iterator[Finding]:
    """Yield findings about work that ranks were still doing when a collective timed out.

    It is a rank's own work, such as tokenizing or saving. Progress bars and counts show that the work advanced but was
    unfinished. Either others waited for these ranks, or all ranks were busy.
    """
    timeouts = [event for event in events if event.limit_expired]
    if not timeouts:
        return
    limits = [int(event.details["timeout_ms"]) / 1000 for event in timeouts if event.details.get("timeout_ms")]
    firsts = {_counter(event): event for event in steps if event.details["what"] == "first"}
    at_work: dict[str, list[LogEvent]] = defaultdict(list)
    trained = list(filter(is_training_step, steps))
    for event in steps:
        if event.details.get("own_work") and event.details["what"] in ("last", "first"):
            first = firsts.get(_counter(event), event)
            is_going_on = _is_unfinished(event) and not _is_over(event, first, trained)
            if is_going_on and _runs_on(event, first, timeouts, min(limits, default=None)):
                at_work[event.details["bar"]].append(event)
    reporters = {rank for event in timeouts for rank in event.ranks}
    everybody_waits = bool(reporters) and reporters >= crowd.everybody
    for label, told in at_work.items():
        waited_for = [event for event in told if not set(event.ranks) & reporters]
        if everybody_waits and crowd.complete:
            waited_for = [event for event in waited_for if event.ranks]
        if waited_for:
            yield _continues(label, waited_for, timeouts, crowd, everybody_waits=everybody_waits)
        elif _at_work_itself(timeouts) and {rank for event in told for rank in event.ranks} >= crowd.everybody:
            yield _all_at_work(label, told)


def _counter(event: LogEvent) -> tuple[object, ...]:
    return event.row["source"], tuple(event.ranks), event.details["shape"], event.details.get("total")


def _is_over(event: LogEvent, first: LogEvent, trained: list[LogEvent]) -> bool:
    """Whether the work is over, because its rank made steps for longer than it counted: a count of every thousandth
    item never shows the last one.

    Some work, such as tuning, continues beside the steps.
    """
    line = event.row["source_line"]
    counted = line - first.row["source_line"]
    return any(
        step.row["source"] == event.row["source"]
        and step.ranks == event.ranks
        and step.row["source_line"] - line > counted
        for step in trained
    )


def _is_unfinished(event: LogEvent) -> bool:
    return 0 < (event.details.get("step") or 0) < (event.details.get("total") or 0)


def _how_long(event: LogEvent) -> tuple[float, int]:
    return event.details.get("elapsed_s") or 0.0, event.details["step"]


def _runs_on(event: LogEvent, first: LogEvent, timeouts: list[LogEvent], limit_s: float | None) -> bool:
    """Whether unfinished work moved until peers timed out; for a count without times, whether it moved at all.

    Work that started long after the wait did is not what the peers waited for, whichever rank logs it.
    """
    elapsed_s = event.details.get("elapsed_s")
    if elapsed_s is not None:
        return bool(elapsed_s >= max(limit_s or 0.0, _LEAST_LIMIT_S) / 2)
    return _outlasts(event, timeouts) or bool(event.details["step"] > (first.details.get("step") or 0))


def _outlasts(event: LogEvent, timeouts: list[LogEvent]) -> bool:
    """Whether it is logged after a timeout: its rank was not in the call that timed out."""
    return any(
        timeout.row["source"] == event.row["source"] and timeout.row["source_line"] < event.row["source_line"]
        for timeout in timeouts
    )


def _is_as_long(event: LogEvent, timeouts: list[LogEvent]) -> bool:
    """Whether the work took as long as a peer waited, so that the wait started with it."""
    waits = [int(timeout.details["elapsed_ms"]) / 1000 for timeout in timeouts if timeout.details.get("elapsed_ms")]
    elapsed_s = event.details.get("elapsed_s") or 0.0
    return elapsed_s > 0 and any(isclose(elapsed_s, wait, rel_tol=_ALIKE) for wait in waits)


def _at_work_itself(timeouts: list[LogEvent]) -> bool:
    """Whether a reporting rank may itself be at work: a watchdog reports from another thread, Gloo raises in the
    waiting call."""
    return all(event.row["code"] != "gloo_timeout" for event in timeouts)


def _continues(
    label: str, told: list[LogEvent], timeouts: list[LogEvent], crowd: Crowd, *, everybody_waits: bool
) -> Finding:
    """The finding about ranks whose unfinished work held up the others; it quotes the longest work.

    `everybody_waits`: all ranks that the log mentions timed out, so nothing shows that a further one exists.
    """
    event = max(told, key=_how_long)
    ranks, joined = sorted({rank for one in told for rank in one.ranks}), None
    if not ranks and len(crowd.silent) == 1:
        ranks, joined = sorted(crowd.silent), "the only rank that reports nothing"
    waited_for = bool(ranks) or (not everybody_waits and (_outlasts(event, timeouts) or _is_as_long(event, timeouts)))
    percent, bar = _percent(event), label or "a progress bar"
    who = rank_list(ranks).capitalize() if ranks else "An unidentified rank"
    was = f"was at {percent:g} % of work of its own ({bar}) when its"
    were = f"were at up to {percent:g} % of work of their own ({bar}) when their"
    return step_finding(
        "rank.progress_continues",
        Severity.WARNING,
        [event],
        f"{who} {were if len(ranks) > 1 else was} peers timed out.",
        {
            "what": label or None,
            "percent": percent,
            "elapsed_s": event.details.get("elapsed_s"),
            "joined": joined,
            "waited_for": waited_for,
        },
        ranks=ranks,
    )


def _all_at_work(label: str, told: list[LogEvent]) -> Finding:
    furthest = max(told, key=_how_long)
    ranks = {rank for event in told for rank in event.ranks}
    return step_finding(
        "rank.progress_continues",
        Severity.WARNING,
        [furthest, *(event for event in told if event is not furthest)],
        f"{rank_list(ranks).capitalize()} were all doing the same work ({label}, {_percent(furthest):g} %), and it "
        "made progress until the timeout.",
        {"what": label or None, "percent": _percent(furthest), "everybody": True},
    )


def _percent(event: LogEvent) -> float:
    return round(100 * int(event.details["step"]) / int(event.details["total"]), 1)
