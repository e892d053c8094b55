"""The grids and groups that a framework makes of degrees and a number of ranks, or why it cannot."""

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
    """A kind of process groups: every rank is in one of them."""

    name: str
    grid: Grid
    dims: tuple[str, ...]
    descriptions: frozenset[str]
    """What its process groups are described as."""

    @property
    def size(self) -> int:
        """Members of each group."""
        return prod(self.grid.size(name) for name in self.dims)

    def members(self, rank: int) -> list[int]:
        """The group of a rank."""
        return self.grid.members(rank, self.dims)


@dataclass(frozen=True)
class Layout:
    """The ranks of a job in their grids."""

    framework: Framework
    degrees: dict[str, int]
    """What was set or worked out, defaults included."""
    grid: Grid
    """The grid of all degrees that multiply to the world."""
    axes: tuple[Axis, ...]
    """Axes with groups of more than one rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.grid.world_size

    @property
    def shape(self) -> str:
        """`pp 2 × dp_shard 4 × tp 8`, the outermost first, dimensions of size 1 left out."""
        sizes = zip(self.grid.names, self.grid.sizes, strict=True)
        return _TIMES.join(f"{name} {size}" for name, size in sizes if size > 1) or "one rank"

    def axis(self, name: str) -> Axis | None:
        """An axis by its name or a description of its groups."""
        asked = {name, f"mesh_{name}"}
        return next((axis for axis in self.axes if axis.name in asked or asked & axis.descriptions), None)


@dataclass(frozen=True)
class Misfit:
    """Why degrees and a number of ranks make no mesh."""

    why: str
    """The arithmetic, for a person."""
    dims: dict[str, int]
    """The degrees that it is about."""
    instead: str = ""
    """What would fit."""
    open_world: bool = False
    """Nothing is wrong: the number of ranks is not known."""


def lay_out(framework: Framework, given: Mapping[str, int], world_size: int | None) -> Layout | Misfit:
    """The layout that the framework makes; `world_size` may be None if every factor is given."""
    degrees = _with_defaults(framework, given)
    if wrong := next((name for name, size in degrees.items() if not _is_degree(framework, name, size)), None):
        allowed = "a positive number, or -1 for what is left" if wrong == framework.inferred else "a positive number"
        return Misfit(
            f"{wrong} = {degrees[wrong]} is not a valid degree: it has to be {allowed}.", {wrong: degrees[wrong]}
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
    """All degrees, the one that is worked out among them; they multiply to the number of ranks."""
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
            why = f"{_equation(known, product)} does not divide the {world_size} ranks: {would}."
            return Misfit(why, known, _nearest(product, world_size))
        return degrees | {open_[0]: world_size // product}
    if product == world_size:
        return degrees
    alone = framework.alone
    if alone and product == 1:
        return degrees | {alone: world_size}
    return Misfit(
        f"{_equation(known, product)}, but the world is {world_size}.", known, _instead(framework, known, world_size)
    )


def _equation(sizes: Mapping[str, int], product: int) -> str:
    """`dp_shard 4 × tp 8 = 32`; sizes of 1 tell nothing unless there are no others."""
    telling = {name: size for name, size in sizes.items() if size != 1} or dict(sizes)
    named = _TIMES.join(f"{name} {size}" for name, size in telling.items())
    return f"{named} = {product}" if len(telling) > 1 else named


def _instead(framework: Framework, known: Mapping[str, int], world_size: int) -> str:
    """What the degree that frameworks let follow from the rest would have to be."""
    loose = framework.inferred or framework.alone or next((name for name in known if name.startswith("dp")), None)
    if loose is None:
        return ""
    rest = prod(size for name, size in known.items() if name != loose)
    if world_size % rest == 0:
        way = f"{loose} = -1 would be" if loose == framework.inferred else f"{loose} would have to be"
        return f"{way} {world_size} / {rest} = {world_size // rest}."
    return f"Without {loose} they make {rest}, which does not divide {world_size}. {_nearest(rest, world_size)}"


def _nearest(product: int, world_size: int) -> str:
    """The worlds next to this one that the product divides."""
    below = world_size // product * product
    fitting = [str(world) for world in (below, below + product) if world]
    return f"Worlds that fit: {', '.join(fitting)}."


def _not_among(framework: Framework, degrees: Mapping[str, int]) -> Misfit | None:
    for name, choices in framework.among.items():
        allowed = [choice if isinstance(choice, int) else degrees[choice] for choice in choices]
        conditions = {grid.condition for grid in framework.grids.values()} - {None}
        if degrees[name] not in allowed and any(degrees[str(condition)] > 1 for condition in conditions):
            told = " or ".join(str(choice) for choice in choices)
            return Misfit(f"{name} = {degrees[name]} has to be {told} (tp = {degrees['tp']}).", {name: degrees[name]})
    return None


def _indivisible(degrees: Mapping[str, int], times: list[str], over: list[str]) -> Misfit:
    whole, part = (_equation({name: degrees[name] for name in names}, prod(degrees[name] for name in names))
                   for names in (times, over))  # fmt: skip
    return Misfit(f"{part} does not divide {whole}.", {name: degrees[name] for name in dict.fromkeys(over + times)})


# --- a grid of ranks: dimensions with sizes, the last one varying fastest, as `init_device_mesh` numbers them
# rank = Σ coordinate × stride, where the stride of a dimension is the product of the sizes behind it.


@dataclass(frozen=True)
class Grid:
    """Names and sizes of the dimensions, the outermost first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @cached_property
    def world_size(self) -> int:
        """How many ranks it has."""
        return prod(self.sizes)

    @cached_property
    def strides(self) -> dict[str, int]:
        """How far apart the ranks are that are neighbours in a dimension."""
        return {name: prod(self.sizes[place + 1 :]) for place, name in enumerate(self.names)}

    def size(self, name: str) -> int:
        """Size of a dimension."""
        return self.sizes[self.names.index(name)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands. Raises ValueError for a rank outside of the grid."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside of a mesh of {self.world_size}")
        return {name: rank // self.strides[name] % self.size(name) for name in self.names}

    def members(self, rank: int, dims: Iterable[str]) -> list[int]:
        """The ranks that differ from this one in these dimensions only, in the order of the group."""
        varied = [name for name in self.names if name in set(dims)]
        base = rank - sum(self.coordinates(rank)[name] * self.strides[name] for name in varied)
        return [base + offset for offset in self._offsets(varied)]

    def groups(self, dims: Iterable[str]) -> Iterator[list[int]]:
        """All groups of ranks that differ in these dimensions only, by their first rank."""
        varied = [name for name in self.names if name in set(dims)]
        fixed = [name for name in self.names if name not in varied]
        offsets = self._offsets(varied)
        for base in self._offsets(fixed):
            yield [base + offset for offset in offsets]

    def _offsets(self, names: Sequence[str]) -> list[int]:
        steps = [range(0, self.size(name) * self.strides[name], self.strides[name]) for name in names]
        return [sum(step) for step in product(*steps)]
