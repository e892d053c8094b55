"""Compares values that ranks printed: which are equal, which differ, and which rank is the odd one."""

from __future__ import annotations

from collections import defaultdict

from ddx_tools.analysis.log_events.attribution import by_ranks
from ddx_tools.analysis.log_events.known_ranks import read_crowd
from ddx_tools.analysis.log_events.log_event import LogEvent, step_finding
from ddx_tools.model.diagnosis import Finding, Severity, rank_list

_ALIKE = 1e-4
"""The relative difference that sums in another order may have."""
_CLEARLY_APART = 5.0
"""How many times the spread within the majority the odd ranks must differ from it."""
_DRIFTED = 5.0
"""How many times their initial difference values must differ to count as drifted."""
_NAMES = {
    "parameters": "parameter checksums",
    "buffers": "buffer checksums",
    "grad_norm": "gradient norms",
    "samples": "sample lists",
    "batch": "batch checksums",
}
_SHOULD_DIFFER = ("samples", "batch")
_OF = " of "

_OfRank = dict[int, LogEvent]
_Steps = dict[tuple[int, int | None], _OfRank]
"""The values of one kind, by attempt and step, then by rank."""


def compared_by_rank(events: list[LogEvent]) -> list[Finding]:
    """Return a finding per kind of value that at least two ranks printed at one step, about its earliest odd step."""
    found: list[Finding] = []
    ranks = len(read_crowd(events).everybody)
    for kind, steps in values_by_step(events).items():
        what, _, of = kind.partition(_OF)
        if what == "drawn" and _changes(steps):
            what = "samples"
        if what not in _NAMES:
            continue
        several = {step: of_rank for step, of_rank in steps.items() if len(of_rank) > 1}
        compared = [
            finding
            for (_, step), of_rank in several.items()
            if (finding := _compared(what, step, of_rank, ranks)).severity is Severity.INFO
            or what not in _SHOULD_DIFFER
            or _share_always(of_rank, several)
        ]
        if not compared:
            continue
        finding = next((one for one in compared if one.severity is not Severity.INFO), compared[0])
        if what in ("parameters", "buffers") and finding.severity is not Severity.INFO:
            finding.attributes["drifting"] = _drifting(steps)
        found.append(_of_copies(finding, what, of) if of else finding)
    return _one_of_pieces(found)


def _of_copies(finding: Finding, what: str, of: str) -> Finding:
    """The finding, marked as being about copies: the ranks' own lines say that they hold the same values."""
    summary = finding.summary.replace(_NAMES[what], f"{_NAMES[what]} ({of})", 1)
    return finding.model_copy(
        update={"summary": summary, "attributes": {**finding.attributes, "replicated": True, "of": of}}
    )


def _one_of_pieces(findings: list[Finding]) -> list[Finding]:
    """One finding for all shards of a model: the first shard whose copies differ, else the first shard."""
    kept: dict[tuple[object, bool], Finding] = {}
    for finding in findings:
        key = finding.attributes["what"], "replicated" in finding.attributes
        if key not in kept or (kept[key].severity is Severity.INFO and finding.severity is not Severity.INFO):
            kept[key] = finding
    return list(kept.values())


def values_by_step(events: list[LogEvent]) -> dict[str, _Steps]:
    """Return the printed values by kind, earliest attempt and step first. "parameters of expert 1" is a kind of its
    own."""
    labelled = _labels_are_ranks(events)
    kinds: dict[str, _Steps] = defaultdict(lambda: defaultdict(dict))
    for event in events:
        if event.kind == "value" and (rank := _rank_of(event, labelled)) is not None:
            what, of = event.details["what"], event.details.get("of")
            at = kinds[f"{what}{_OF}{of}" if of else what][event.attempt, event.details.get("step")]
            at.setdefault(rank, event)
    return {
        what: dict(sorted(steps.items(), key=lambda item: (item[0][0], item[0][1] or 0)))
        for what, steps in kinds.items()
    }


def measured(event: LogEvent) -> float | None:
    """Return the value as a number if it has decimals; whole numbers may be hexadecimal hashes."""
    value: str = event.details["value"]
    try:
        return float(value) if "." in value else None
    except ValueError:
        return None


def _labels_are_ranks(events: list[LogEvent]) -> bool:
    """Whether the labels of lines without a rank are ranks: they count from 0, and each labels several lines."""
    labels = [event.details.get("label") for event in events if event.kind == "value" and not event.ranks]
    known = set(labels)
    return len(known) > 1 and known == set(range(len(known))) and len(labels) >= 2 * len(known)


def _rank_of(event: LogEvent, labelled: bool) -> int | None:
    if len(event.ranks) == 1:
        return event.ranks[0]
    label: int | None = event.details.get("label")
    return label if labelled and not event.ranks else None


def _changes(steps: _Steps) -> bool:
    """Whether any rank's value changes between steps; a shape, for example, does not."""
    values: dict[int, set[str]] = defaultdict(set)
    for of_rank in steps.values():
        for rank, event in of_rank.items():
            values[rank].add(event.details["value"])
    return any(len(known) > 1 for known in values.values())


def _share_always(at_one: _OfRank, steps: _Steps) -> bool:
    """Whether ranks with equal values at one step have equal values at all steps: a sampler pads the last batch of an
    epoch."""
    together = [[of_rank[r] for r in group if r in of_rank] for group in _groups(at_one) for of_rank in steps.values()]
    return all(_alike(events[0], other) for events in together for other in events[1:])


def _compared(what: str, step: int | None, of_rank: _OfRank, ranks: int) -> Finding:
    """The finding about one step. `ranks`: the job's number of ranks, according to the logs."""
    groups = _groups(of_rank)
    equal = len(groups) == 1
    should_differ = what in _SHOULD_DIFFER
    # Ranks of one model-parallel group read the same data, and all such groups have one size. Counting the ranks that
    # printed nothing at this step, the groups here can have one size.
    lacking = sum(len(groups[0]) - len(group) for group in groups)
    shared = should_differ and lacking > ranks - len(of_rank)
    if shared:
        odd = sorted(rank for group in groups if len(group) > 1 for rank in group)
    else:
        odd = _minority(groups, of_rank)
    where = f" at step {step}" if step is not None else ""
    if equal:
        said = f"The {_NAMES[what]} of {rank_list(list(of_rank))} are equal{where}."
    elif shared:
        said = f"The {_NAMES[what]} of {rank_list(odd)} are equal{where}, but those of the other ranks are not."
    elif odd:
        said = f"The {_NAMES[what]} differ between ranks{where}: {rank_list(odd)} against {rank_list(groups[0])}."
    else:
        said = f"The {_NAMES[what]} of {rank_list(list(of_rank))} differ{where}."
    is_odd = equal or shared if should_differ else not equal
    return step_finding(
        "numerics.compared_by_rank",
        Severity.NOTICE if is_odd else Severity.INFO,
        [of_rank[rank] for rank in (*odd, *(r for r in sorted(of_rank) if r not in odd))],
        said,
        {
            "what": what,
            "equal": equal,
            "shared": shared or None,
            "step": step,
            "values": by_ranks({rank: event.details["value"][:40] for rank, event in of_rank.items()}),
            "ranks_compared": len(of_rank),
            "distinct": len(groups),
            "minority": bool(odd) and not shared if not equal else None,
        },
        ranks=odd if odd else sorted(of_rank),
    )


def _groups(of_rank: _OfRank) -> list[list[int]]:
    """The ranks whose values agree, the largest group first."""
    groups: list[list[int]] = []
    for rank, event in sorted(of_rank.items()):
        same = next((g for g in groups if _alike(of_rank[g[0]], event)), None)
        if same is None:
            groups.append([rank])
        else:
            same.append(rank)
    return sorted(groups, key=len, reverse=True)


def _minority(groups: list[list[int]], of_rank: _OfRank) -> list[int]:
    """The odd ranks, if a majority agrees on what the value should be; empty if there is no majority."""
    if len(groups[0]) <= len(of_rank) / 2:
        return []
    majority = [value for rank in groups[0] if (value := measured(of_rank[rank])) is not None]
    odd = sorted(rank for group in groups[1:] for rank in group)
    apart = [value for rank in odd if (value := measured(of_rank[rank])) is not None]
    if majority and apart:
        distance = min(abs(one - other) for one in majority for other in apart)
        if distance < _CLEARLY_APART * (max(majority) - min(majority)):
            return []
    return odd


def _alike(one: LogEvent, other: LogEvent) -> bool:
    first, second = measured(one), measured(other)
    if first is None or second is None:
        return bool(one.details["value"] == other.details["value"])
    return first == second or abs(first - second) <= _ALIKE * max(abs(first), abs(second))


def _drifting(steps: _Steps) -> bool:
    """Whether nearly equal numbers drifted apart from step to step: replicas do, whereas shards differ from the
    start."""
    spreads = [_spread(of_rank) for of_rank in steps.values() if len(of_rank) > 1]
    known = [spread for spread in spreads if spread is not None]
    return len(known) > 1 and known == sorted(known) and known[-1] > max(_ALIKE, _DRIFTED * known[0])


def _spread(of_rank: _OfRank) -> float | None:
    """The spread of the values, relative to the largest; None if they are not measured numbers."""
    values = [value for event in of_rank.values() if (value := measured(event)) is not None]
    largest = max((abs(value) for value in values), default=0.0)
    return (max(values) - min(values)) / largest if largest and len(values) == len(of_rank) else None
