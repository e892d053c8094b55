"""DTensors that lie otherwise on some ranks, or whose parts do not make up the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ddx_tools.consistency.prints import Look, Print, make_finding
from ddx_tools.model import Finding, Severity, rank_list

_CUT, _WHOLE = "S(", "R"


def misplaced(look: Look) -> list[Finding]:
    """The first parameter of the kind, if there is one. Plain tensors of one name may be those of pipeline stages."""
    for name, of_rank in look.of("parameter").items():
        lying: dict[tuple[tuple[str, ...] | None, str], list[int]] = {}
        for rank, one in of_rank.items():
            lying.setdefault((one.placements, str(one.facts.get("shape"))), []).append(rank)
        sets = sorted(lying.items(), key=lambda item: -len(item[1]))
        odd, axis = list[int](), None
        if len(sets) > 1 and any(placements for placements, _ in lying):
            told = "; ".join(f"{rank_list(ranks)}: {_words(*how)}" for how, ranks in sets)
            said = f"The parameter {name} lies otherwise from rank to rank: {told}"
            odd = sorted(rank for _, ranks in sets[1:] for rank in ranks) if len(sets[0][1]) > len(sets[1][1]) else []
            axis = _cut_otherwise(next(iter(of_rank.values())), [placements for (placements, _), _ in sets])
        elif (held := _held(of_rank)) and held[0] != held[1]:
            said = f"The parts of the parameter {name} make {held[0]} of its {held[1]} elements"
        else:
            continue
        ranks = odd or sorted(of_rank)
        prints, facts = [of_rank[rank] for rank in ranks], {"tensor": name, "minority": bool(odd), "axis": axis}
        code = "numerics.placements_differ"
        return [make_finding(code, Severity.FAILURE, ranks, said, prints, "parameter", **facts)]
    return []


def _held(of_rank: Mapping[int, Print]) -> tuple[int, int] | None:
    """Elements in the parts of all coordinates, and of the whole; None where a part is not there, or nothing is cut."""
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


def _cut_otherwise(one: Print, ways: Sequence[tuple[str, ...] | None]) -> str | None:
    """The one dimension of the mesh in which the placements differ."""
    names = one.facts.get("mesh") or []
    told = [name for name, *how in zip(names, *(way or () for way in ways), strict=False) if len(set(how)) > 1]
    return str(told[0]) if len(told) == 1 else None


def _words(placements: tuple[str, ...] | None, shape: str) -> str:
    return f"{'plain' if placements is None else ', '.join(placements)} of {shape}"
