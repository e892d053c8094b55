"""Which ranks must hold the same values: by DTensor placements, by DDP's group, otherwise by their initial values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from ddx_tools.model.diagnosis import Finding, Location, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.probes.consistency.fingerprints import FingerprintStep, Print, make_finding

_ALIKE = 1e-5
"""Relative tolerance for gradients: sums in another order differ in their last digits."""
_EXACT = ("parameter", "buffer", "optimizer")


class Replicas:
    """The sets of ranks that share a tensor, according to the first sample of an attempt."""

    def __init__(self, first: FingerprintStep) -> None:
        self.wrapped = _wrapped(first)
        self.buffers_kept = _buffers_kept(first)
        self._began: dict[str, list[list[int]]] = {
            name: alike("parameter", of_rank) for name, of_rank in first.of("parameter").items()
        }

    def sets(self, what: str, name: str, of_rank: Mapping[int, Print]) -> list[list[int]]:
        """Return the sets of ranks, each of at least two, that must hold equal values of one tensor.

        `what` and `name` are the tensor's kind and name; `of_rank` maps each rank to its fingerprint of it.
        """
        if any(each.placements is not None for each in of_rank.values()):
            found = list(_by_coordinate(of_rank))
        elif self.wrapped:
            found = [[rank for rank in self.wrapped if rank in of_rank]]
        else:
            began = self._began.get(name.partition("/")[0] if what == "optimizer" else name)
            everybody = [sorted(of_rank)] if any(len(sets) == 1 for sets in self._began.values()) else []
            found = everybody if began is None else began
        return [ranks for each in found if len(ranks := [rank for rank in each if rank in of_rank]) > 1]

    def everybody(self) -> list[list[int]]:
        """Return the sets of ranks that hold the same plain parameters: data parallelism reduces over these."""
        if self.wrapped:
            return [self.wrapped]
        return max(self._began.values(), key=len, default=[])


def alike(what: str, of_rank: Mapping[int, Print]) -> list[list[int]]:
    """Group the ranks whose fingerprints of one tensor agree; return the largest set first.

    `what` is the kind of tensor; `of_rank` maps each rank to its fingerprint.
    """
    sets: list[list[int]] = []
    for rank, one in sorted(of_rank.items()):
        same = next((each for each in sets if _agree(what, of_rank[each[0]], one)), None)
        if same is None:
            sets.append([rank])
        else:
            same.append(rank)
    return sorted(sets, key=len, reverse=True)


def _agree(what: str, one: Print, other: Print) -> bool:
    if one.hash == other.hash:
        return True
    if what in _EXACT or one.non_finite != other.non_finite:
        return False
    scale = max(one.norm, other.norm)
    return all(
        math.isclose(a, b, abs_tol=_ALIKE * scale)
        for a, b in ((one.norm, other.norm), (one.projection, other.projection))
    )


def _by_coordinate(of_rank: Mapping[int, Print]) -> Sequence[list[int]]:
    """Ranks with the same coordinate in the dimensions along which the tensor is sharded or not yet summed."""
    sets: dict[Hashable, list[int]] = defaultdict(list)
    for rank, one in sorted(of_rank.items()):
        coordinate = one.facts.get("coordinate") or []
        cut = [at for at, how in zip(coordinate, one.placements or (), strict=False) if not how.startswith("R")]
        sets[one.placements, one.facts.get("mesh_id"), tuple(cut)].append(rank)
    return list(sets.values())


def _wrapped(look: FingerprintStep) -> list[int]:
    for of_rank in look.of("wrapper").values():
        for one in of_rank.values():
            if isinstance(ranks := one.facts.get("ranks"), list):
                return sorted(ranks)
    return []


def _buffers_kept(look: FingerprintStep) -> bool:
    """Whether DDP broadcasts rank 0's buffers before each forward: after the forward they may then differ."""
    wrappers = [one for of_rank in look.of("wrapper").values() for one in of_rank.values()]
    return any(one.facts.get("broadcast_buffers") for one in wrappers)


# --- DTensors that are placed differently on some ranks, or whose parts do not add up to the whole

_CUT, _WHOLE = "S(", "R"


def misplaced(look: FingerprintStep) -> list[Finding]:
    """Return a finding about the first inconsistently sharded parameter; an empty list if there is none.

    Ranks may have different placements or shapes of one DTensor, or its parts may not add up to the whole. Plain
    tensors that share a name do not count: they may belong to different pipeline stages.
    """
    for name, of_rank in look.of("parameter").items():
        lying = gathered(((one.placements, str(one.facts.get("shape"))), rank) for rank, one in of_rank.items())
        sets = sorted(lying.items(), key=lambda item: -len(item[1]))
        odd, axis = list[int](), None
        if len(sets) > 1 and any(placements for placements, _ in lying):
            told = "; ".join(
                f"{rank_list(ranks)}: {'plain' if placements is None else ', '.join(placements)} of {shape}"
                for (placements, shape), ranks in sets
            )
            said = f"The parameter {name} is placed differently on different ranks: {told}"
            odd = sorted(rank for _, ranks in sets[1:] for rank in ranks) if len(sets[0][1]) > len(sets[1][1]) else []
            axis = odd_axis(next(iter(of_rank.values())), [placements or () for (placements, _), _ in sets])
        elif (held := _held(of_rank)) and held[0] != held[1]:
            said = f"The parts of the parameter {name} hold {held[0]} elements, but the whole has {held[1]}"
        else:
            continue
        ranks = odd or sorted(of_rank)
        prints, facts = [of_rank[rank] for rank in ranks], {"tensor": name, "minority": bool(odd), "axis": axis}
        code = "numerics.placements_differ"
        return [make_finding(code, Severity.FAILURE, ranks, said, prints, "parameter", **facts)]
    return []


def _held(of_rank: Mapping[int, Print]) -> tuple[int, int] | None:
    """The number of elements in all parts, and in the whole; None if a part is missing or nothing is sharded."""
    parts: dict[tuple[int, ...], int] = {}
    for one in of_rank.values():
        ways = one.placements or ()
        if not ways or one.facts.get("mesh_size") != len(of_rank):
            return None
        if any(not way.startswith(_CUT) and way != _WHOLE for way in ways):
            return None
        at = tuple(at for at, way in zip(one.facts.get("coordinate") or (), ways, strict=False) if way != _WHOLE)
        parts[at] = math.prod(one.facts.get("local") or ())
    return sum(parts.values()), math.prod(next(iter(of_rank.values())).facts.get("shape") or ())


def odd_axis(one: Print, told: Iterable[Sequence[object]]) -> str | None:
    """Return the only mesh dimension in which the given coordinates or placements differ; None if there are several."""
    names = one.facts.get("mesh") or []
    odd = [name for name, *values in zip(names, *told, strict=False) if len(set(values)) > 1]
    return str(odd[0]) if len(odd) == 1 else None


# --- the program lines that called forward, reductions and the optimizer's step

_MOST_PLACES = 3


class AttemptCalls:
    """The places of calls in one attempt, per rank: each from the first sample that has it."""

    def __init__(self, seen: Sequence[FingerprintStep]) -> None:
        self._of_rank: dict[int, dict[str, Any]] = {}
        for look in reversed(seen):
            for rank, one in look.of("calls").get("", {}).items():
                known = self._of_rank.setdefault(rank, {})
                known.update({name: value for name, value in one.facts.items() if value != []})

    def places(self, ranks: Iterable[int], *which: str) -> list[Location]:
        """Return where the ranks called the first known of `which`: `reductions`, `forward`, `step_at`."""
        mine = [self._of_rank[rank] for rank in ranks if rank in self._of_rank]
        for name in which:
            found = [
                place
                for facts in mine
                for place in (
                    [each["at"] for each in facts.get(name, ())] if name == "reductions" else [facts.get(name)]
                )
                if place
            ]
            if found:
                unique = list(dict.fromkeys(map(tuple, found)))[:_MOST_PLACES]
                return [Location(file=file, line=line, function=function) for file, line, function in unique]
        return []

    def left_out(self, ranks: Iterable[int]) -> str | None:
        """Return why these ranks did not reduce their gradients: `past_wrapper` or `no_sync`.

        The first: forward did not go through the data-parallel wrapper. The second: its gradient synchronisation was
        off. None if the samples show neither.
        """
        mine = [self._of_rank.get(rank, {}) for rank in ranks]
        if any(facts.get("past_wrapper") is True for facts in mine):
            return "past_wrapper"
        if any(facts.get("sync") is False for facts in mine):
            return "no_sync"
        return None
