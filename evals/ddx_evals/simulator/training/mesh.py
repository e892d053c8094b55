"""The ranks, axes and process groups of a simulated job, created in torch's order.

A mesh is written outermost axis first: pp, dp, tp. Every axis longer than one gets a process group along each of its
lines (torch's `init_device_mesh`); expert parallelism splits the dp lines into blocks. Group names are numbers counted
over the whole job, the same on all ranks; a rank's `pg_id` counts only its own groups.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

AXES = ("pp", "dp", "tp")
WORLD = "world"
RANKS_A_HOST = 8

_MEGATRON = {
    "dp": "DATA_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "embedding": "EMBEDDING_GROUP",
}


@dataclass(frozen=True, eq=False)
class SimulatedGroup:
    """A process group. `index` is unique in the job, `name` and `description` are what the records show."""

    index: int
    axis: str
    name: str
    description: str
    ranks: tuple[int, ...]
    local: Mapping[int, int] = field(repr=False)
    """For each global rank, its rank within the group."""

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)


@dataclass(frozen=True)
class Naming:
    """How a job names its groups: `mesh_tp`, Megatron's long names or nothing; numbers or hashes."""

    style: str = "mesh"
    hashed: bool = False

    @classmethod
    def chosen(cls, choice: random.Random) -> Naming:
        """A random naming that occurs in real jobs."""
        return cls(choice.choice(("mesh", "mesh", "megatron", "undefined")), choice.random() < 0.15)

    def description(self, axis: str) -> str:
        """The `desc` of a group of this axis."""
        if axis == WORLD:
            return "default_pg"
        return {"mesh": f"mesh_{axis}", "megatron": _MEGATRON[axis]}.get(self.style, "undefined")

    def name(self, number: int, ranks: tuple[int, ...]) -> str:
        """The name of the group that was created as number `number`."""
        if self.hashed and number:
            return str(int(hashlib.sha1(repr(ranks).encode()).hexdigest()[:15], 16) + number)
        return str(number)


class SimulatedMesh:
    """The sizes of the axes and all groups. tp varies fastest with the rank, then dp, then pp."""

    def __init__(self, pp: int, dp: int, tp: int, ep: int = 1, *, naming: Naming | None = None, tied: bool = False):
        """`ep` divides dp. With `tied`, first and last pipeline stage share a group for the tied embedding."""
        self.sizes = {"pp": pp, "dp": dp, "tp": tp}
        self.experts = ep
        self.world_size = pp * dp * tp
        self.groups: list[SimulatedGroup] = []
        self.of_rank: list[dict[str, SimulatedGroup]] = [{} for _ in range(self.world_size)]
        """For each rank, its group along each axis (`world`, pp, dp, tp, ep, embedding), if there is one."""
        self._naming = naming or Naming()
        self._make(WORLD, [tuple(range(self.world_size))])
        for axis in AXES:
            if self.sizes[axis] == self.world_size:
                for groups in self.of_rank:
                    groups[axis] = groups[WORLD]
            elif self.sizes[axis] > 1:
                self._make(axis, self._lines(axis))
        if ep > 1:
            blocks = (line[i : i + ep] for line in self._lines("dp") for i in range(0, dp, ep))
            self._make("ep", blocks)
        if tied and pp > 2:
            self._make("embedding", ((line[0], line[-1]) for line in self._lines("pp")))

    def coordinate(self, rank: int, axis: str) -> int:
        """The index of a rank along an axis."""
        pp, rest = divmod(rank, self.sizes["dp"] * self.sizes["tp"])
        dp, tp = divmod(rest, self.sizes["tp"])
        return {"pp": pp, "dp": dp, "tp": tp}[axis]

    def pg_ids(self, rank: int) -> dict[int, int]:
        """For each group index, the `pg_id` in this rank's records."""
        members = {id(group): group for group in self.of_rank[rank].values()}
        return {group.index: number for number, group in enumerate(sorted(members.values(), key=lambda g: g.index))}

    def _lines(self, axis: str) -> list[tuple[int, ...]]:
        inner = {"tp": 1, "dp": self.sizes["tp"], "pp": self.sizes["tp"] * self.sizes["dp"]}[axis]
        length = self.sizes[axis]
        starts = [rank for rank in range(self.world_size) if self.coordinate(rank, axis) == 0]
        return [tuple(start + step * inner for step in range(length)) for start in starts]

    def _make(self, axis: str, lines: Iterable[tuple[int, ...]]) -> None:
        for ranks in lines:
            number = len(self.groups)
            group = SimulatedGroup(
                number,
                axis,
                self._naming.name(number, ranks),
                self._naming.description(axis),
                ranks,
                {rank: local for local, rank in enumerate(ranks)},
            )
            self.groups.append(group)
            for rank in ranks:
                self.of_rank[rank][axis] = group
