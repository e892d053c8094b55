"""Findings about fingerprints: the first value that ranks must share but that differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.probes.consistency.fingerprints import FingerprintStep, Print, looks, make_finding
from ddx_tools.probes.consistency.reduction import Reduced, group_size_of, reduction_at
from ddx_tools.probes.consistency.replicas import AttemptCalls, Replicas, alike, misplaced, odd_axis
from ddx_tools.probes.consistency.runs import compare_runs, resumed

_SHARED = ("gradient", "parameter", "buffer", "optimizer")
"""Reduced gradients are equal even where parameters differ, so differing gradients explain differing parameters."""
_WORDS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer states",
    "gradient": "gradients",
    "own_gradient": "own gradients",
    "batch": "batch",
}
_MODEL_AXES = ("tp", "cp", "sp", "pp", "ep", "tensor", "context", "sequence", "pipeline")
"""Ranks along these read the same data."""
_MOST_NAMES = 6
_MEAN = 1e-2
"""Relative tolerance for rounding in low precision."""
_LEFT_OUT = {
    "past_wrapper": " The program calls the wrapped module, not DistributedDataParallel itself.",
    "no_sync": " Forward runs under no_sync.",
    "not_summed": " Its gradient is a Partial: each rank holds one summand, which must not be used by itself.",
}


def consistency_findings(store: Store) -> list[Finding]:
    """Return the findings about the fingerprints of all runs; only the first divergence per attempt, as later ones
    follow from it."""
    everything = list(looks(store))
    own = [look for look in everything if not look.run]
    found: list[Finding] = []
    lost = resumed(own)
    for _, attempt in groupby(own, key=lambda look: look.attempt):
        seen = list(attempt)
        # Ranks that lost their random states the same way draw the same data.
        shared = [] if lost else [_placed(each, AttemptCalls(seen)) for each in _data(seen)]
        found += [*shared, *_of_attempt(seen)]
    found += [*lost, *compare_runs(everything)]
    return found or ([_consistent(own)] if own else [])


def _of_attempt(seen: Sequence[FingerprintStep]) -> list[Finding]:
    replicas, calls = Replicas(seen[0]), AttemptCalls(seen)
    found = [*misplaced(seen[0]), *_tied(seen[0])]
    for look in seen:
        apart = [*_non_finite(look), *_differing(look, replicas, calls, is_first=look is seen[0])]
        if apart := apart or _reduced(look, replicas):
            return [_placed(each, calls) for each in found + apart]
    return found


def _placed(finding: Finding, calls: AttemptCalls) -> Finding:
    """The finding, with the program lines that called the operations it is about."""
    reduced = finding.attributes["what"] == "gradient" and not finding.attributes.get("left_out")
    which = ("reductions", "forward", "step_at") if reduced else ("forward", "step_at")
    places = calls.places(finding.ranks, *which)
    words = f" The calls are at {', '.join(place.short() for place in places)}." if places else ""
    return finding.model_copy(update={"locations": places, "summary": finding.summary + words})


def _tied(look: FingerprintStep) -> Iterator[Finding]:
    """Parameters that are one tensor on some ranks and several on others. Pipeline stages hold different parameters."""
    of_rank = look.of("tied").get("", {})
    ties = {tuple(names): rank for rank, one in of_rank.items() for names in one.facts.get("names") or ()}
    parameters = look.of("parameter")
    for names, tied_on in ties.items():
        on = [set(parameters.get(name, ())) for name in names]
        if apart := sorted(rank for rank in of_rank if sum(rank in ranks for ranks in on) > 1):
            which = " and ".join(names[:_MOST_NAMES])
            said = f"{which} are one tensor on rank {tied_on} but several on {rank_list(apart)}"
            prints = [of_rank[rank] for rank in (tied_on, *apart)]
            minority = len(apart) < len(of_rank) / 2
            yield make_finding(
                "numerics.tensors_differ", Severity.FAILURE, apart, said, prints, "tied", minority=minority
            )
            return


def _non_finite(look: FingerprintStep) -> Iterator[Finding]:
    """The first kind of value in the sample that is not finite somewhere, and the rank and tensor that had it first."""
    for what in ("batch", "own_gradient", "gradient", "parameter", "buffer"):
        bad = [one for of_rank in look.of(what).values() for one in of_rank.values() if one.non_finite]
        if not bad:
            continue
        ranks = sorted({one.rank for one in bad})
        some = len(ranks) < len(look.ranks)
        nearest = min(bad, key=lambda one: one.position)
        own = what in ("batch", "own_gradient")
        told = f"{nearest.non_finite} values, the first in {nearest.name or 'its tensor'}"
        others = "; on all other ranks they are finite" if some else ""
        whose = f"{_WORDS[what]} of {rank_list(ranks)}"
        yield make_finding(
            "numerics.non_finite",
            Severity.WARNING,
            ranks,
            f"At step {look.step}, the {whose} hold NaN or infinity: {told}{others}.",
            [nearest],
            what,
            step=look.step,
            tensor=nearest.name,
            module=nearest.name.rpartition(".")[0],
            first_rank=ranks[0] if some and own else None,
            before_reduction=own and some,
        )
        return


def _differing(look: FingerprintStep, replicas: Replicas, calls: AttemptCalls, *, is_first: bool) -> list[Finding]:
    """The first kind of tensor that differs between ranks that must share it."""
    for what in _SHARED:
        if what == "buffer" and replicas.buffers_kept:
            continue
        compared, apart = 0, list[tuple[str, list[list[int]], dict[int, Print]]]()
        for name, of_rank in look.of(what).items():
            for ranks in replicas.sets(what, name, of_rank):
                compared += 1
                sets = alike(what, {rank: of_rank[rank] for rank in ranks})
                if len(sets) > 1:
                    apart.append((name, sets, of_rank))
        if apart and what == "gradient" and (part := _reduced_by_some(look, apart[0][1]) or _reduced(look, replicas)):
            return part
        if apart:
            return [_apart(look, what, apart, compared, calls, is_first=is_first)]
    return []


def _apart(
    look: FingerprintStep,
    what: str,
    apart: list[tuple[str, list[list[int]], dict[int, Print]]],
    compared: int,
    calls: AttemptCalls,
    *,
    is_first: bool,
) -> Finding:
    name, sets, of_rank = apart[0]
    everybody = sorted(rank for ranks in sets for rank in ranks)
    odd = sorted(rank for ranks in sets[1:] for rank in ranks) if len(sets[0]) > len(everybody) / 2 else []
    names = list(dict.fromkeys(each[0] for each in apart))
    module = [
        part for part, *others in zip(*(each.split(".")[:-1] for each in names), strict=False) if {part} >= set(others)
    ]
    every = len(apart) == compared
    many = f"{len(apart)} of {compared}" if not every else f"all {compared}"
    who = f"{rank_list(odd)} against {rank_list(sets[0])}" if odd else ", ".join(rank_list(ranks) for ranks in sets)
    axis = odd_axis(of_rank[everybody[0]], [of_rank[rank].facts.get("coordinate") or [] for rank in everybody])
    left_out = calls.left_out(everybody) if what == "gradient" else None
    ways = [way for one in look.of("gradient").get(name, {}).values() for way in one.placements or ()]
    if what == "parameter" and any(way.startswith("P") for way in ways):
        left_out = "not_summed"
    when = f"at step {look.step}{', the first step sampled' if is_first else ''}"
    return make_finding(
        "numerics.tensors_differ",
        Severity.FAILURE,
        odd or everybody,
        f"The {_WORDS[what]} differ between ranks that share them {when}, in {many} tensors, first in {name}: "
        f"{who}{f' along {axis} of the mesh' if axis else ''}.{_LEFT_OUT.get(left_out or '', '')}",
        [of_rank[rank] for ranks in sets for rank in ranks[:2]],
        what,
        step=look.step,
        tensor=name,
        tensors=names[:_MOST_NAMES],
        module=".".join(module),
        differing=len(apart),
        compared=compared,
        every=every,
        from_start=is_first,
        minority=bool(odd),
        pairs=len(sets) < len(everybody) and not odd,
        axis=axis,
        left_out=left_out,
    )


def _reduced(look: FingerprintStep, replicas: Replicas) -> list[Finding]:
    """A gradient that is not the mean over the ranks that share the model, even if all of them hold the same one."""
    for ranks in replicas.everybody():
        made = reduction_at(look, ranks[0], ranks) if len(ranks) > 1 else None
        if made is None or len(made.over) == 1:
            continue
        size = group_size_of(made.scale, range(2, 2 * len(ranks) + 1))
        if len(made.over) < len(ranks) or size is not None:
            return [_reduction_finding(look, ranks, made, size)]
    return []


def _reduced_by_some(look: FingerprintStep, sets: Sequence[Sequence[int]]) -> list[Finding]:
    """Gradients of some ranks that are N times those of the other ranks, where N is the number of ranks.

    The gradients before the reduction need not be known for this: the sum over N ranks is N times the mean. If as many
    ranks hold the larger gradient as the smaller one, either may be wrong: no rank is named.
    """
    everybody = sorted(rank for ranks in sets for rank in ranks)
    if len(sets) != 2:
        return []
    even, size = len(sets[0]) == len(sets[1]), len(everybody)
    larger, smaller = sets[1], sets[0]
    if even and _is_multiple(look, smaller[0], larger[0], size):
        larger, smaller = smaller, larger
    elif not _is_multiple(look, larger[0], smaller[0], size):
        return []
    made = Reduced(tuple(everybody), float(size))
    return [_reduction_finding(look, everybody, made, size, larger)]


def _is_multiple(step: FingerprintStep, of: int, other: int, times: int) -> bool:
    """Whether all gradients of one rank are a multiple of those of another."""
    pairs = [(one[of], one[other]) for one in step.of("gradient").values() if of in one and other in one]
    values = [(a.norm, b.norm) for a, b in pairs] + [(a.projection, b.projection) for a, b in pairs]
    if not pairs or any(a.non_finite or b.non_finite for a, b in pairs) or not any(b.norm for _, b in pairs):
        return False
    return all(abs(value - times * one) <= _MEAN * times * abs(one) for value, one in values)


def _reduction_finding(
    look: FingerprintStep, ranks: Sequence[int], made: Reduced, size: int | None, odd: Sequence[int] = ()
) -> Finding:
    """`odd`: the ranks with this gradient, if not all ranks have it. If half of the ranks have it, none is blamed."""
    even = 2 * len(odd) == len(ranks)
    over, scale, part, together = made.over, made.scale, len(made.over) < len(ranks), rank_list(list(ranks))
    named = ranks if even else odd or ranks
    if even:
        others = rank_list(sorted({*ranks} - {*odd}))
        how, words = "scaled", f"{scale:.4g} times that of {others}, so one of the two is not the mean over {together}"
    elif part:
        how, words = "part", f"reduced over {rank_list(list(over))} only, although {together} share the model"
    elif size == len(ranks):
        how, words = "sum", f"the sum over {together}, not the mean"
    elif size == -len(ranks):
        how, words = "divided_twice", f"the mean over {together} divided by {len(ranks)} a second time"
    else:
        how, words = "scaled", f"{scale:.4g} times the mean over {together}"
    name, reduced = next(iter(look.of("gradient").items()))
    # The gradients before and after the reduction.
    shown = [look.of("own_gradient").get(name, {}), reduced]
    return make_finding(
        "numerics.reduction_differs",
        Severity.WARNING,
        [*named],
        f"The gradient of {rank_list([*odd]) if odd else f'rank {ranks[0]}'} at step {look.step} is {words}.",
        [one for of_rank in shown for rank, one in of_rank.items() if rank in named],
        "gradient",
        step=look.step,
        how=how,
        over=list(over),
        ratio=round(scale, 4),
        size=len(over),
        minority=(bool(odd) and not even) or None,
    )


def _data(seen: Sequence[FingerprintStep]) -> list[Finding]:
    """Ranks that got the same batch at every step, although no model-parallel dimension makes them share data."""
    axes = {
        str(axis)
        for look in seen
        for of_rank in look.of("parameter").values()
        for one in of_rank.values()
        for axis in one.facts.get("mesh") or ()
    }
    if any(axis.startswith(_MODEL_AXES) for axis in axes):
        return []
    batches = [(look.step, each) for look in seen for each in list(look.of("batch").values())[:1] if len(each) > 1]
    together = [[ranks for ranks in alike("batch", each) if len(ranks) > 1] for _, each in batches]
    if not together or not together[0] or any(sets != together[0] for sets in together):
        return []
    step, prints = batches[0]
    ranks = sorted(rank for each in together[0] for rank in each)
    equal = len(together[0]) == 1 and len(ranks) == len(prints)
    who = " and ".join(rank_list(each) for each in together[0])
    return [
        make_finding(
            "numerics.compared_by_rank",
            Severity.NOTICE,
            ranks,
            f"The batches of {who} are equal at {len(batches)} of {len(batches)} steps, from step {step} on.",
            [prints[rank] for rank in ranks],
            "batch",
            equal=equal,
            shared=None if equal else True,
            step=step,
            ranks_compared=len(prints),
        )
    ]


def _consistent(seen: Sequence[FingerprintStep]) -> Finding:
    kinds = {what: len(look.of(what)) for look in seen for what in _SHARED}
    ranks = sorted({rank for look in seen for rank in look.ranks})
    steps = rank_list({look.step for look in seen}).partition(" ")[2]
    return Finding(
        code="numerics.consistent",
        severity=Severity.INFO,
        ranks=ranks,
        summary=f"Everything that {rank_list(ranks)} must share is equal at steps {steps}: "
        + ", ".join(f"{count} of kind {what}" for what, count in kinds.items() if count),
        attributes={"steps": len(seen), "ranks_compared": len(ranks)},
    )
