"""Finds exceptions that were caught and only logged, so that their process went on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ddx_tools.analysis.log_events.log_event import OWN_ENDS, REPORTED_ENDS, LogEvent, is_training_step, short_name

_Steps = dict[tuple[object, ...], list[LogEvent]]
"""Steps per process or rank that made them, as far as the source shows it."""
_SEVERAL_STEPS = 3
"""Other ranks' lines about the step in which a rank dies, and the previous one, may follow its traceback."""


def handled_exceptions(events: list[LogEvent]) -> set[int]:
    """Find handled tracebacks (as `id` of the event): their process made steps afterwards, or they resemble such a one.

    If only another rank prints the steps, a process also went on if it raises the same exception again while the job
    advances by several steps: ranks step together.

    What a rank caught at one place, it catches there again, as long as its end is not reported: the last tracebacks of
    a growing log have no step after them yet, and those in an error file have none at all. If all frames are equal, it
    is the same `try`. It counts as another attempt in a retry loop if no more tracebacks follow each other than the
    rank survived before.
    """
    steps: _Steps = defaultdict(list)
    for event in events:
        if event.kind == "step":
            for key in _speakers(event):
                steps[key].append(event)
    reported = any(event.kind in REPORTED_ENDS for event in events)
    tracebacks = [event for event in events if event.kind == "traceback"]
    handled = {
        id(event)
        for event in tracebacks
        if event.caught or event.details.get("outlived") or _was_handled(event, steps, reported=reported)
    }
    ended = {rank for event in events if event.kind in (*REPORTED_ENDS, *OWN_ENDS) for rank in event.ranks or (None,)}
    if None in ended:
        return handled
    alive = [event for event in tracebacks if len(event.ranks) == 1 and not ended.intersection(event.ranks)]
    handled |= _raised_again(alive, events)
    runs = {id(event): (_what(event), event.row["source"], _made_before(event, steps)) for event in tracebacks}
    in_a_row = Counter(runs.values())
    survived: dict[tuple[object, ...], int] = defaultdict(int)
    for event in tracebacks:
        if id(event) in handled and event.ranks and event.location:
            survived[_what(event)] = max(survived[_what(event)], in_a_row[runs[id(event)]])
    again = (event for event in tracebacks if _what(event) in survived and not ended.intersection(event.ranks))
    return handled | {
        id(event) for event in again if not runs[id(event)][2] or in_a_row[runs[id(event)]] <= survived[_what(event)]
    }


def _speakers(event: LogEvent) -> Iterator[tuple[object, ...]]:
    """Keys that identify an event's process: the labels of its lines, or its rank if the text names that."""
    yield event.row["source"], "stream", event.details.get("stream")
    if len(event.ranks) == 1:
        yield event.row["source"], "rank", event.ranks[0]


def _what(event: LogEvent) -> tuple[object, ...]:
    row = event.row
    return tuple(event.ranks), event.attempt, short_name(event.exception), row["frames"], row["line"], row["function"]


def _own_steps(event: LogEvent, steps: _Steps) -> Iterable[LogEvent]:
    """The steps of the raising process in the traceback's file."""
    made = (step for key in _speakers(event) for step in steps.get(key, ()))
    return {id(step): step for step in made if step.attempt == event.attempt and is_training_step(step)}.values()


def _made_before(event: LogEvent, steps: _Steps) -> int:
    """How many steps precede a traceback; equal for tracebacks that follow each other without a step."""
    return sum(step.row["source_line"] < event.details["first_line"] for step in _own_steps(event, steps))


def _was_handled(event: LogEvent, steps: _Steps, *, reported: bool) -> bool:
    """Whether a traceback was only logged, as its process made more steps. `reported`: the log reports ranks' ends."""
    own = _own_steps(event, steps)
    # A message extends to the next block, so it may include unlabelled lines that follow it. Progress lines like those
    # before the message do not belong to it.
    behind = any(step.row["source_line"] >= event.details["last_line"] for step in own)
    if not behind and not _goes_on(event, own):
        return False
    one_process = (
        bool(event.details.get("stream"))
        or event.details.get("local_rank") is not None
        or event.row["rank"] is not None
    )
    return one_process or not reported


def _raised_again(tracebacks: Sequence[LogEvent], events: Iterable[LogEvent]) -> set[int]:
    """The tracebacks that their rank repeats, and after which the job made more steps than were in flight."""
    latest = {(_what(event), event.row["source"]): event for event in tracebacks}
    numbers: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if is_training_step(event) and event.details.get("step") is not None:
            place = event.row["source"], event.attempt
            numbers[place].append((event.row["source_line"], event.details["step"]))
    found = set()
    for event in tracebacks:
        steps = numbers[event.row["source"], event.attempt]
        behind = [number for line, number in steps if line >= event.details["last_line"]]
        before = [number for line, number in steps if line < event.details["first_line"]] or behind[:1]
        is_repeated = latest[_what(event), event.row["source"]] is not event
        if is_repeated and behind and max(behind) - max(before) >= _SEVERAL_STEPS:
            found.add(id(event))
    return found


def _goes_on(event: LogEvent, steps: Iterable[LogEvent]) -> bool:
    """Whether the same kind of line reports a step before a traceback and a later step after it."""
    before: dict[str, int] = {}
    for step in steps:
        number = step.details.get("step")
        if number is None:
            continue
        shape = step.details["shape"]
        if step.row["source_line"] < event.details["first_line"]:
            before[shape] = max(before.get(shape, number), number)
        elif step.row["source_line"] > event.row["source_line"] and number > before.get(shape, number):
            return True
    return False
