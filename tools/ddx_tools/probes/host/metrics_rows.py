"""Turns the series of a metrics server into rows of `host_facts`: those of a saved page of metrics, but dated.

A counter counts by its increase before the job stopped, never by its value. What happened before the window or after
the job had stopped, or on a host that may not be the job's, becomes `metric_changed`, which decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.machine.host_text import TextLine
from ddx_tools.parsers.machine.metrics_series import Series, Stretch, read_series
from ddx_tools.parsers.machine.metrics_text import (
    COUNTED_XIDS,
    GPU_COUNTERS,
    GPU_READINGS,
    GPU_STATES,
    LAST_XID,
    PORT_COUNTERS,
    MetricSample,
    gpu_of,
    sample_facts,
    xid_of,
)
from ddx_tools.probes.host.metrics_capture import (
    NIC_COUNTERS,
    OOM_KILLS,
    REPLAYS,
    SERIES,
    VIOLATIONS,
    Window,
    host_of_labels,
    names_of_hosts,
)
from ddx_tools.sources.raw import Raw, Rows

Row = dict[str, Any]
_MOST_ROWS = 5_000
_QUOTE_CHARS = 300
_LEAST_THROTTLED_S = 120.0
_REASON_BITS = 16
_MANY_DROPS = 10_000
_LOSSES = tuple(name for name in PORT_COUNTERS if "discard" in name or "dropped" in name)
"""Over minutes, these grow on healthy ports, too."""


@dataclass(frozen=True)
class _Change:
    """An increase of a counter, or a new Xid."""

    at_s: float
    before: float
    after: float

    @property
    def grown(self) -> float:
        return self.after - self.before


@dataclass
class _Job:
    """What is known about the job, and when the server could read its targets."""

    window: Window
    known: dict[str, str]
    up: dict[str, list[Stretch]] = field(default_factory=dict)
    """For each `instance`, the runs of its `up`."""

    def host(self, one: Series) -> str | None:
        return host_of_labels(one.labels, self.known)

    def counts(self, at_s: float) -> bool:
        """Whether an event at this time (seconds since the epoch) may have stopped the job.

        False for times more than 60 s after the last rank stopped, and if the job's hosts are unknown.
        """
        return bool(self.known) and at_s <= self.window.counted_s

    def began(self, one: Series) -> bool:
        """Whether a series really began at its first value, with zero or nothing before.

        True only if its exporter was up one step earlier; otherwise earlier values may just not have been collected.
        """
        before_s = one.runs[0].first_s - self.window.step_s
        runs = self.up.get(one.labels.get("instance", ""), ())
        return any(run.value == 1 and run.first_s <= before_s <= run.last_s for run in runs)

    def when(self, at_s: float) -> str:
        """A time relative to the time at which the job stopped, in words."""
        apart_s = round(self.window.stopped_s - at_s)
        if abs(apart_s) < self.window.step_s:
            return "as the job stopped"
        apart = f"{abs(apart_s)} s" if abs(apart_s) < 120 else f"{round(abs(apart_s) / 60)} min"
        return f"{apart} {'before' if apart_s > 0 else 'after'} the job stopped"


def series_rows(raw: Raw) -> Rows:
    """Return the rows of `host_facts` from all answers of the metrics server."""
    answers = [(item, list(read_series(item.data))) for item in raw.of(SERIES)]
    everything = [one for _, found in answers for one in found]
    up = gathered((one.labels.get("instance", ""), run) for one in everything if one.name == "up" for run in one.runs)
    if not answers:
        return {"host_facts": []}
    asked = answers[0][0].facts
    job = _Job(asked["window"], names_of_hosts(asked["hosts"]), up)
    rows: list[Row] = []
    for item, found in answers:
        mine = [one for one in found if job.host(one) or not job.known]
        rows += (row | {"source": item.source} for row in islice(_rows(mine, job), _MOST_ROWS))
    return {"host_facts": rows}


def _rows(found: Sequence[Series], job: _Job) -> Iterator[Row]:
    by_name = gathered((one.name, one) for one in found)
    samples: list[tuple[MetricSample, float]] = []
    for one in by_name.get(LAST_XID, ()):
        counted, others = _last_xids(one, job)
        samples += [(_sample(one, job, change.after), change.at_s) for change in counted]
        yield from others
    for one in (one for name in (*COUNTED_XIDS, *GPU_COUNTERS, *PORT_COUNTERS) for one in by_name.get(name, ())):
        for change in _merged(_increases(one, job), job):
            if job.counts(change.at_s) and one.name not in _LOSSES:
                samples.append((_sample(one, job, change.grown), change.at_s))
            else:
                yield _undecided(one, job, change)
    if job.known:
        samples += [sample for name in GPU_STATES for one in by_name.get(name, ()) for sample in _throttled(one, job)]
        samples += [_reading(one, job) for name in GPU_READINGS for one in by_name.get(name, ())]
        yield from _nics([one for name in NIC_COUNTERS for one in by_name.get(name, ())], job)
        yield from _targets(by_name.get("up", ()), job)
    yield from _facts(samples, job)
    for one in (one for name in (REPLAYS, *VIOLATIONS, OOM_KILLS) for one in by_name.get(name, ())):
        for change in _merged(_increases(one, job), job):
            if one.name == OOM_KILLS and job.counts(change.at_s):
                values = _dated(job, change.at_s) | {"kills": int(change.grown)}
                yield _row("oom_kills", None, _line(one, job), values)
            elif job.counts(change.at_s) or one.name == OOM_KILLS:
                yield _undecided(one, job, change)


# --- changes


def _increases(one: Series, job: _Job) -> list[_Change]:
    """The increases of a counter; after a reset, it counts from zero. An increase during a gap is dated by its end."""
    found = [
        _Change(run.first_s, last.value if run.value > last.value else 0.0, run.value)
        for last, run in pairwise(one.runs)
        if run.value != last.value and run.value > 0
    ]
    first = one.runs[0]
    return [_Change(first.first_s, 0.0, first.value), *found] if first.value > 0 and job.began(one) else found


def _merged(changes: Sequence[_Change], job: _Job) -> list[_Change]:
    """All increases that count as one, and all later ones as one, each dated by the first of them."""
    found = []
    for group in gathered((job.window.counted_s < change.at_s, change) for change in changes).values():
        first = group[0]
        found.append(_Change(first.at_s, first.before, first.before + sum(change.grown for change in group)))
    return found


def _last_xids(one: Series, job: _Job) -> tuple[list[_Change], list[Row]]:
    """The Xids that may have stopped the job, and rows about the others.

    DCGM shows the last Xid for as long as the exporter runs: one that was there from the beginning is old.
    """
    first = one.runs[0]
    changes = [
        _Change(run.first_s, last.value, run.value)
        for last, run in pairwise(one.runs)
        if run.value not in (0, last.value)
    ]
    if first.value > 0 and job.began(one):
        changes.insert(0, _Change(first.first_s, 0.0, first.value))
    old = [_undecided(one, job, None)] if first.value > 0 and not job.began(one) else []
    counted = [change for change in changes if job.counts(change.at_s)]
    return counted, old + [_undecided(one, job, change) for change in changes if change not in counted]


def _throttled(one: Series, job: _Job) -> Iterator[tuple[MetricSample, float]]:
    """The reasons that held for minutes before the job stopped; a short one is part of normal operation."""
    runs = [run for run in one.runs if job.counts(run.first_s)]
    lasting = 0
    for bit in (1 << place for place in range(_REASON_BITS)):
        held_s = sum(
            min(run.last_s, job.window.counted_s) - run.first_s + job.window.step_s
            for run in runs
            if int(run.value) & bit
        )
        lasting |= bit if held_s >= _LEAST_THROTTLED_S else 0
    if lasting:
        since_s = next(run.first_s for run in runs if int(run.value) & lasting)
        yield _sample(one, job, float(lasting)), since_s


def _reading(one: Series, job: _Job) -> tuple[MetricSample, float]:
    last = one.runs[-1]
    return _sample(one, job, last.value), last.last_s


# --- rows


def _line(one: Series, job: _Job) -> TextLine:
    return TextLine(one.line, one.text[:_QUOTE_CHARS], job.host(one))


def _sample(one: Series, job: _Job, value: float) -> MetricSample:
    """A series as a value on a page: of a counter, how far it grew."""
    return MetricSample(one.name, one.labels, value, _line(one, job))


def _row(topic: str, subject: str | None, line: TextLine, values: dict[str, Any]) -> Row:
    known = {name: value for name, value in values.items() if value is not None}
    return {
        "host": line.host,
        "topic": topic,
        "subject": subject,
        "facts": json.dumps(known, ensure_ascii=False),
        "text": line.text,
        "source_line": line.number,
    }


def _dated(job: _Job, at_s: float) -> dict[str, Any]:
    return {"time_s": at_s, "when": job.when(at_s), "of_series": True}


def _facts(samples: Sequence[tuple[MetricSample, float]], job: _Job) -> Iterator[Row]:
    """The facts that a page with these values would have; counters of ports as two readings, from zero on."""
    times = {id(sample.line): at_s for sample, at_s in samples}
    for fact in sample_facts(sample for sample, _ in samples):
        values = fact.values | _dated(job, times[id(fact.line)])
        if fact.topic == "port_errors":
            yield _row(fact.topic, fact.subject, fact.line, values | {"counters": {}})
        yield _row(fact.topic, fact.subject, fact.line, values)


def _undecided(one: Series, job: _Job, change: _Change | None) -> Row:
    """A row about a change that decides nothing; None: an Xid from before the window."""
    code = change.after if change else one.runs[0].value
    of_gpu = one.name.startswith(("DCGM_", "accelerator_"))
    values = {
        "device": gpu_of(one.labels) if of_gpu else one.labels.get("device"),
        "xid": xid_of(one.name, one.labels, code),
        "grown": change.grown if change and one.name != LAST_XID else None,
        "period": "long_before" if change is None else "after" if change.at_s > job.window.counted_s else "before",
        "host_unknown": None if job.known else True,
        "when": job.when(change.at_s) if change else None,
    }
    return _row("metric_changed", one.name, _line(one, job), values)


def _nics(found: Sequence[Series], job: _Job) -> Iterator[Row]:
    """Two readings of the counters of each device: zero, and how far they grew before the job stopped.

    Every interface drops packets that nobody wants, such as unknown protocols; so many drops are said only.
    """
    for (_, device), group in gathered(((job.host(one), one.labels.get("device", "?")), one) for one in found).items():
        grown: dict[str, Any] = dict.fromkeys(NIC_COUNTERS.values(), 0)
        worst = group[0]
        for one in group:
            kind = NIC_COUNTERS[one.name]
            changes = [change for change in _increases(one, job) if job.counts(change.at_s)]
            many = int(sum(change.grown for change in changes))
            if kind.endswith("_drops"):
                drops = _merged(changes, job) if many >= _MANY_DROPS else ()
                yield from (_undecided(one, job, change) for change in drops)
                continue
            grown[kind] += many
            worst = one if many and kind.endswith("_errors") else worst
        yield _row("nic_counters", device[:60], _line(worst, job), dict.fromkeys(grown, 0) | {"of_series": True})
        yield _row("nic_counters", device[:60], _line(worst, job), grown | {"of_series": True})


def _targets(found: Sequence[Series], job: _Job) -> Iterator[Row]:
    """Hosts on which all scrape targets stopped answering before the job stopped, and did not come back until then."""
    for group in gathered((job.host(one), one) for one in found).values():
        ended = [at_s for one in group if (at_s := _ended_s(one, job)) is not None]
        if ended and len(ended) == len(group):
            values = _dated(job, min(ended)) | {"targets": len(ended)}
            yield _row("targets_down", None, _line(group[0], job), values)


def _ended_s(one: Series, job: _Job) -> float | None:
    """When a target stopped answering; None if it answered as the job stopped, or never."""
    runs = [run for run in one.runs if job.counts(run.first_s)]
    is_down = len(runs) > 1 and runs[-1].value == 0 and any(run.value == 1 for run in runs)
    return runs[-1].first_s if is_down else None
