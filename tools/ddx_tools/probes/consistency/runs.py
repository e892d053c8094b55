"""Compares two runs, or two attempts of one run, at the same steps: what differs first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ddx_tools.model.diagnosis import Finding, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.consistency.fingerprints import FingerprintStep, Print, make_finding
from ddx_tools.probes.consistency.reduction import group_size_of

_ORDER = ("parameter", "optimizer", "buffer", "batch", "value", "own_gradient", "gradient")
"""Earlier kinds cause differences in later ones."""
_ALIKE = 1e-3
_MOST_GROUP = 4096


def resumed(everything: Sequence[FingerprintStep]) -> list[Finding]:
    """Return a finding if random states after a resume differ from those of the earlier attempt at the same point."""
    for earlier, later in pairwise(gathered((look.attempt, look) for look in everything).values()):
        for before, after in _same_points(earlier, later):
            if found := _random_states(before, after):
                return [found]
    return []


def _same_points(
    earlier: Sequence[FingerprintStep], later: Sequence[FingerprintStep]
) -> list[tuple[FingerprintStep, FingerprintStep]]:
    """The points where the later attempt resumes: its first step that both have; if it counts anew, the step with equal
    parameters.

    Step 0 in both is a fresh start. Parameters that are equal at several steps show nothing.
    """
    by_step = {look.step: look for look in earlier}
    shared = [(by_step[look.step], look) for look in later if look.step in by_step][:1]
    if later[0].step == 0 and 0 in by_step and _holds_same(by_step[0], later[0]):
        return []
    alike = [(look, later[0]) for look in earlier if look.step > 0 and _holds_same(look, later[0])]
    return [pair for pair in shared if _holds_same(*pair)] or (alike if len(alike) == 1 else [])


def _holds_same(one: FingerprintStep, other: FingerprintStep) -> bool:
    both = one.of("parameter").keys() & other.of("parameter").keys()
    return bool(both) and _first_difference(one, other, ("parameter",)) is None


def _random_states(before: FingerprintStep, after: FingerprintStep) -> Finding | None:
    was, now = (look.of("rng").get("", {}) for look in (before, after))
    ranks = sorted(was.keys() & now.keys())
    lost = {
        rank: sorted(
            name
            for name, state in (was[rank].facts.get("states") or {}).items()
            if state != (now[rank].facts.get("states") or {}).get(name)
        )
        for rank in ranks
    }
    different = [rank for rank in ranks if lost[rank]]
    if not different:
        return None
    generators = sorted({name for names in lost.values() for name in names})
    point = "before" if before.step == after.step else f"step {before.step} before"
    return Finding(
        code="numerics.rng_differs",
        severity=Severity.WARNING,
        ranks=different,
        summary=f"After the resume, the parameters at step {after.step} are those of {point}, but the random states "
        f"({', '.join(generators)}) of {rank_list(different)} are not.",
        evidence=[at[rank].evidence() for rank in different[:2] for at in (was, now)],
        attributes={
            "step": after.step,
            "generators": generators,
            "same": [rank for rank in ranks if not lost[rank]],
            "different": different,
        },
    )


def compare_runs(everything: Sequence[FingerprintStep]) -> Iterator[Finding]:
    """Yield a finding with the first step and tensor where the run differs from the reference run, or that they
    agree."""
    own, other = ({look.step: look for look in everything if look.run == run} for run in (0, 1))
    if not other:
        return
    steps = sorted(own.keys() & other.keys())
    for step in steps:
        if found := _first_difference(own[step], other[step], _ORDER):
            yield _runs_differ(step, *found)
            return
    yield Finding(
        code="numerics.runs_agree",
        severity=Severity.INFO,
        summary=f"Both runs hold the same values at {len(steps)} steps." if steps else "The runs share no step number.",
        attributes={"steps": len(steps)},
    )


def _first_difference(
    own: FingerprintStep, other: FingerprintStep, kinds: Sequence[str]
) -> tuple[str, Print, Print] | None:
    """The first difference by kind, then in model order: rank by rank, or all ranks with a single-rank run."""
    alone = len(other.ranks) == 1 or len(own.ranks) == 1
    for what in kinds if not alone else [what for what in kinds if what in ("parameter", "gradient")]:
        theirs = other.of(what)
        for name, of_rank in own.of(what).items():
            held = theirs.get(name, {})
            if alone:
                pairs = [(one, against) for one in _wholes(of_rank) for against in _wholes(held)[:1]]
            else:
                pairs = [(one, held[rank]) for rank, one in of_rank.items() if rank in held]
            for one, against in pairs:
                if not _same(one, against):
                    return what, one, against
    return None


def _wholes(of_rank: Mapping[int, Print]) -> list[Print]:
    """A tensor as a single rank would hold it: the parts of a DTensor tile it, and its summands add up.

    From parts the norm follows, from summands the projection, which is linear (the other is NaN); from a mix, nothing.
    """
    prints = list(of_rank.values())
    ways = prints[0].placements if prints else None
    if ways is None or len(prints) == 1:
        return prints
    if prints[0].facts.get("mesh_size") != len(prints) or any(one.placements != ways for one in prints):
        return []
    parts = {
        tuple(at for at, way in zip(one.facts.get("coordinate") or (), ways, strict=False) if way != "R"): one
        for one in prints
    }.values()
    apart = {way[0] for way in ways} - {"R"}
    if apart == {"S"}:
        norm = math.sqrt(sum(one.norm**2 for one in parts))
        return [replace(prints[0], hash="", norm=norm, projection=math.nan)]
    if apart == {"P"} and not any("sum" not in way for way in ways if way.startswith("P(")):
        return [replace(prints[0], hash="", norm=math.nan, projection=sum(one.projection for one in parts))]
    return prints if not apart else []


def _same(one: Print, other: Print) -> bool:
    scale = max((size for size in (one.norm, other.norm) if not math.isnan(size)), default=0.0)
    return one.hash == other.hash or (
        one.non_finite == other.non_finite
        and all(
            math.isnan(a + b) or math.isclose(a, b, abs_tol=_ALIKE * scale)
            for a, b in ((one.norm, other.norm), (one.projection, other.projection))
        )
    )


def _runs_differ(step: int, what: str, one: Print, other: Print) -> Finding:
    held, wanted = (
        (one.norm, other.norm) if not math.isnan(one.norm + other.norm) else (one.projection, other.projection)
    )
    ratio = held / wanted if wanted else math.inf
    measure = "norm" if held == one.norm else "projection"
    size = group_size_of(ratio, range(2, _MOST_GROUP)) if what == "gradient" else None
    whole = f"; the norms differ by a factor of {abs(size)}" if size else ""
    code = "numerics.ratio_to_group" if size else "numerics.runs_differ"
    said = (
        f"The runs first differ at step {step}, in the {what.replace('_', ' ')} {one.name} of rank {one.rank}: "
        f"{measure} {held:.6g} against {wanted:.6g}{whole}."
    )
    facts = {"step": step, "tensor": one.name, "ratio": round(ratio, 4), "size": size}
    return make_finding(code, Severity.NOTICE, [one.rank], said, [one, other], what, **facts)
