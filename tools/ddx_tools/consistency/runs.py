"""Two runs, or two attempts of one, at the same steps: what differs first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ddx_tools.consistency.prints import Look, Print
from ddx_tools.consistency.reduction import group_size_of
from ddx_tools.model import Finding, Severity, rank_list

_ORDER = ("parameter", "optimizer", "buffer", "batch", "value", "own_gradient", "gradient")
"""What comes first makes what comes later."""
_ALIKE = 1e-3
_MOST_GROUP = 4096


def resumed(everything: Sequence[Look]) -> list[Finding]:
    """Random states after a resume that are not those with which the earlier attempt came to the same step."""
    attempts = sorted({look.attempt for look in everything})
    by_key = {(look.attempt, look.step): look for look in everything}
    for earlier, later in pairwise(attempts):
        steps = [step for attempt, step in by_key if attempt == later and (earlier, step) in by_key]
        if steps and (found := _random_states(by_key[earlier, min(steps)], by_key[later, min(steps)])):
            return [found]
    return []


def _random_states(before: Look, after: Look) -> Finding | None:
    was, now = (look.of("rng").get("", {}) for look in (before, after))
    if _first_difference(before, after, ("parameter",)) is not None:
        return None
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
    return Finding(
        code="numerics.rng_differs",
        severity=Severity.WARNING,
        ranks=different,
        summary=f"After the resume the parameters at step {after.step} are those of before, and the random states "
        f"({', '.join(generators)}) of {rank_list(different)} are not.",
        evidence=[at[rank].evidence() for rank in different[:2] for at in (was, now)],
        attributes={
            "step": after.step,
            "generators": generators,
            "same": [rank for rank in ranks if not lost[rank]],
            "different": different,
        },
    )


def compare_runs(everything: Sequence[Look]) -> list[Finding]:
    """The first step and tensor in which the run differs from the one that it is held against."""
    own, other = ({look.step: look for look in everything if look.run == run} for run in (0, 1))
    if not other:
        return []
    steps = sorted(own.keys() & other.keys())
    for step in steps:
        if found := _first_difference(own[step], other[step], _ORDER):
            return [_runs_differ(step, *found)]
    return [
        Finding(
            code="numerics.runs_agree",
            severity=Severity.INFO,
            summary=f"Both runs hold the same at {len(steps)} steps." if steps else "The runs share no step.",
            attributes={"steps": len(steps)},
        )
    ]


def _first_difference(own: Look, other: Look, kinds: Sequence[str]) -> tuple[str, Print, Print] | None:
    """By kind and then in the order of the model: rank with rank, or all with one that was alone."""
    alone = len(other.ranks) == 1 or len(own.ranks) == 1
    for what in kinds if not alone else [what for what in kinds if what in ("parameter", "gradient")]:
        theirs = other.of(what)
        for name, of_rank in own.of(what).items():
            for rank, one in of_rank.items():
                held = theirs.get(name, {})
                against = held.get(rank) if not alone else next(iter(held.values()), None)
                if against is not None and not _same(one, against):
                    return what, one, against
    return None


def _same(one: Print, other: Print) -> bool:
    scale = max(one.norm, other.norm)
    return one.hash == other.hash or (
        one.non_finite == other.non_finite
        and math.isclose(one.norm, other.norm, abs_tol=_ALIKE * scale)
        and math.isclose(one.projection, other.projection, abs_tol=_ALIKE * scale)
    )


def _runs_differ(step: int, what: str, one: Print, other: Print) -> Finding:
    ratio = one.norm / other.norm if other.norm else math.inf
    size = group_size_of(ratio, range(2, _MOST_GROUP)) if what == "gradient" else None
    whole = f"; the norms are as {abs(size)} to 1" if size else ""
    return Finding(
        code="numerics.ratio_to_group" if size else "numerics.runs_differ",
        severity=Severity.NOTICE,
        ranks=[one.rank],
        summary=f"The runs differ first at step {step}, in the {what.replace('_', ' ')} {one.name} of rank {one.rank}: "
        f"norm {one.norm:.6g} against {other.norm:.6g}{whole}.",
        evidence=[one.evidence(), other.evidence()],
        attributes={"step": step, "what": what, "tensor": one.name, "ratio": round(ratio, 4), "size": size},
    )
