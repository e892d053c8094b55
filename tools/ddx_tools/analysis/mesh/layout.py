"""Lays out ranks in the grids and groups that a framework makes from degrees and a number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from ddx_tools.analysis.mesh.knowledge import Framework

_TIMES = " × "


@dataclass(frozen=True)
class Axis:
    """A kind of process group along some dimensions; every rank is in exactly one group of the kind."""

    name: str
    grid: Grid
    dims: tuple[str, ...]
    descriptions: frozenset[str]
    """Descriptions that its process groups may have."""

    @property
    def size(self) -> int:
        """Number of ranks in each group."""
        return prod(self.grid.size(name) for name in self.dims)

    def members(self, rank: int) -> list[int]:
        """The members of a rank's group."""
        return self.grid.members(rank, self.dims)


@dataclass(frozen=True)
class Layout:
    """The ranks of a job laid out in a framework's grids."""

    framework: Framework
    degrees: dict[str, int]
    """All degrees: set, computed or default."""
    grid: Grid
    """The grid of all degrees whose product is the number of ranks."""
    axes: tuple[Axis, ...]
    """Axes with groups of more than one rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.grid.world_size

    @property
    def shape(self) -> str:
        """The shape in words, outermost first, without dimensions of size 1: `pp 2 × dp_shard 4 × tp 8`."""
        sizes = zip(self.grid.names, self.grid.sizes, strict=True)
        return _TIMES.join(f"{name} {size}" for name, size in sizes if size > 1) or "one rank"

    def axis(self, name: str) -> Axis | None:
        """The axis with a name or a group description; None if there is none."""
        asked = {name, f"mesh_{name}"}
        return next((axis for axis in self.axes if axis.name in asked or asked & axis.descriptions), None)


@dataclass(frozen=True)
class Misfit:
    """Why degrees and a number of ranks do not form a mesh."""

    why: str
    """The arithmetic as a sentence for a person."""
    dims: dict[str, int]
    """The degrees involved."""
    instead: str = ""
    """A sentence on what would fit."""
    open_world: bool = False
    """Nothing is wrong: only the number of ranks is unknown."""


def lay_out(framework: Framework, given: Mapping[str, int], world_size: int | None) -> Layout | Misfit:
    """Lay out the ranks as the framework does; `world_size` may be None if every factor is given."""
    degrees = _with_defaults(framework, given)
    if wrong := next((name for name, size in degrees.items() if not _is_degree(framework, name, size)), None):
        allowed = "a positive number, or -1 for the remainder" if wrong == framework.inferred else "a positive number"
        return Misfit(
            f"{wrong} = {degrees[wrong]} is not a valid degree: it must be {allowed}.", {wrong: degrees[wrong]}
        )
    completed = _complete(framework, degrees, world_size)
    if isinstance(completed, Misfit):
        return completed
    if misfit := _not_among(framework, completed):
        return misfit
    made = {id_: grid for id_, grid in framework.grids.items() if not grid.condition or completed[grid.condition] > 1}
    sizes = dict(completed)
    for name, derived in framework.derived.items():
        if not any(name in grid.order for grid in made.values()):
            continue
        times, over = (prod(completed[part] for part in parts) for parts in (derived.times, derived.over))
        if times % over:
            return _indivisible(completed, derived.times, derived.over)
        sizes[name] = times // over
    grids = {id_: Grid(tuple(grid.order), tuple(sizes[name] for name in grid.order)) for id_, grid in made.items()}
    axes = (
        Axis(axis.name, grids[axis.grid], tuple(axis.dims), frozenset([f"mesh_{axis.name}", *axis.groups]))
        for axis in framework.axes
        if axis.grid in grids
    )
    return Layout(framework, completed, grids["dense"], tuple(axis for axis in axes if axis.size > 1))


def _with_defaults(framework: Framework, given: Mapping[str, int]) -> dict[str, int]:
    degrees: dict[str, int] = {}
    for name, default in framework.degrees.items():
        value: int | str = given.get(name, default)
        degrees[name] = value if isinstance(value, int) else given.get(value, 1)
    return degrees


def _is_degree(framework: Framework, name: str, size: int) -> bool:
    return size >= 1 or (size == -1 and name == framework.inferred)


def _complete(framework: Framework, degrees: dict[str, int], world_size: int | None) -> dict[str, int] | Misfit:
    """All degrees, including the computed one; their product is the number of ranks."""
    factors = framework.factors
    open_ = [name for name in factors if degrees[name] == -1]
    known = {name: degrees[name] for name in factors if degrees[name] != -1}
    product = prod(known.values())
    if world_size is None:
        if open_:
            why = f"{open_[0]} would be computed from the number of ranks, which is unknown."
            return Misfit(why, known, "Name it: --world-size N.", open_world=True)
        return degrees
    if world_size < 1:
        return Misfit(f"A job needs at least one rank, not {world_size}.", known)
    if open_:
        if world_size % product:
            would = f"{open_[0]} = -1 would be {world_size} / {product} = {world_size / product:.4g}"
            why = f"{_equation(known, product)} does not divide the {world_size} ranks evenly: {would}."
            return Misfit(why, known, _nearest(product, world_size))
        return degrees | {open_[0]: world_size // product}
    if product == world_size:
        return degrees
    alone = framework.alone
    if alone and product == 1:
        return degrees | {alone: world_size}
    return Misfit(
        f"{_equation(known, product)}, but the world size is {world_size}.",
        known,
        _instead(framework, known, world_size),
    )


def _equation(sizes: Mapping[str, int], product: int) -> str:
    """A product of sizes in words, `dp_shard 4 × tp 8 = 32`; sizes of 1 are left out unless there are no others."""
    telling = {name: size for name, size in sizes.items() if size != 1} or dict(sizes)
    named = _TIMES.join(f"{name} {size}" for name, size in telling.items())
    return f"{named} = {product}" if len(telling) > 1 else named


def _instead(framework: Framework, known: Mapping[str, int], world_size: int) -> str:
    """A sentence on what the inferred degree would have to be, or why no value fits."""
    loose = framework.inferred or framework.alone or next((name for name in known if name.startswith("dp")), None)
    if loose is None:
        return ""
    rest = prod(size for name, size in known.items() if name != loose)
    if world_size % rest == 0:
        way = f"{loose} = -1 would be" if loose == framework.inferred else f"{loose} would have to be"
        return f"{way} {world_size} / {rest} = {world_size // rest}."
    return f"Without {loose} they make {rest}, which does not divide {world_size} evenly. {_nearest(rest, world_size)}"


def _nearest(product: int, world_size: int) -> str:
    """A sentence with the nearest world sizes that the product divides evenly."""
    below = world_size // product * product
    fitting = [str(world) for world in (below, below + product) if world]
    return f"World sizes that fit: {', '.join(fitting)}."


def _not_among(framework: Framework, degrees: Mapping[str, int]) -> Misfit | None:
    for name, choices in framework.among.items():
        allowed = [choice if isinstance(choice, int) else degrees[choice] for choice in choices]
        conditions = {grid.condition for grid in framework.grids.values()} - {None}
        if degrees[name] not in allowed and any(degrees[str(condition)] > 1 for condition in conditions):
            told = " or ".join(str(choice) for choice in choices)
            return Misfit(f"{name} = {degrees[name]} must be {told} (tp = {degrees['tp']}).", {name: degrees[name]})
    return None


def _indivisible(degrees: Mapping[str, int], times: list[str], over: list[str]) -> Misfit:
    whole, part = (_equation({name: degrees[name] for name in names}, prod(degrees[name] for name in names))
                   for names in (times, over))  # fmt: skip
    return Misfit(
        f"{part} does not divide {whole} evenly.", {name: degrees[name] for name in dict.fromkeys(over + times)}
    )


# --- a grid of ranks: dimensions with sizes, the last one varying fastest, as `init_device_mesh` numbers them
# rank = Σ coordinate × stride, where the stride of a dimension is the product of the sizes after it.


@dataclass(frozen=True)
class Grid:
    """A grid of ranks, as names and sizes of its dimensions, outermost first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @cached_property
    def world_size(self) -> int:
        """Number of ranks in the grid."""
        return prod(self.sizes)

    @cached_property
    def strides(self) -> dict[str, int]:
        """For each dimension, the distance between ranks that are neighbours in it."""
        return {name: prod(self.sizes[place + 1 :]) for place, name in enumerate(self.names)}

    def size(self, name: str) -> int:
        """Number of ranks along a dimension."""
        return self.sizes[self.names.index(name)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's coordinate in each dimension. Raises ValueError for a rank outside the grid."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside a mesh of {self.world_size} ranks")
        return {name: rank // self.strides[name] % self.size(name) for name in self.names}

    def members(self, rank: int, dims: Iterable[str]) -> list[int]:
        """The ranks that differ from this one only in these dimensions, in group order."""
        varied = [name for name in self.names if name in set(dims)]
        base = rank - sum(self.coordinates(rank)[name] * self.strides[name] for name in varied)
        return [base + offset for offset in self._offsets(varied)]

    def groups(self, dims: Iterable[str]) -> Iterator[list[int]]:
        """All groups of ranks that differ only in these dimensions, ordered by first rank."""
        varied = [name for name in self.names if name in set(dims)]
        fixed = [name for name in self.names if name not in varied]
        offsets = self._offsets(varied)
        for base in self._offsets(fixed):
            yield [base + offset for offset in offsets]

    def _offsets(self, names: Sequence[str]) -> list[int]:
        steps = [range(0, self.size(name) * self.strides[name], self.strides[name]) for name in names]
        return [sum(step) for step in product(*steps)]
