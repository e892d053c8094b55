"""Maps recorded process groups to the axes of a mesh, and derives the mesh from them if nothing else shows it.

A DeviceMesh describes the groups of its dimension tp as `mesh_tp` (torch 2.13 distributed/device_mesh.py);
Megatron-LM's descriptions are in `mesh_orders.yaml`. Members decide; descriptions only choose between axes whose
groups have the same members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddx_tools.analysis.mesh.knowledge import mesh_knowledge
from ddx_tools.analysis.mesh.layout import Axis, Layout, Misfit, lay_out
from ddx_tools.analysis.mesh.plan import AS_WRITTEN, MeshPlan, combined, plans_of_rows
from ddx_tools.evidence.store import Store
from ddx_tools.model.files.names import shown
from ddx_tools.model.mesh_setting import MeshSetting

RECORDED = "recorded groups"
_MOST_NAME = 60


@dataclass(frozen=True)
class RecordedGroup:
    """A process group from flight records, with its global ranks in ascending order."""

    id: int
    description: str
    members: tuple[int, ...]

    @property
    def key(self) -> str:
        """The group's evidence source: `fr_groups:7`."""
        return f"fr_groups:{self.id}"

    @property
    def step(self) -> int | None:
        """The distance between neighbouring members, if it is constant."""
        steps = {after - before for before, after in pairwise(self.members)}
        return steps.pop() if len(steps) == 1 else None


def recorded_groups(store: Store) -> list[RecordedGroup]:
    """Read the groups of more than one rank whose members are known."""
    rows = store.query("SELECT group_id, description, members FROM fr_groups ORDER BY group_id")
    return [group for row in rows if (group := group_of_row(row))]


def group_of_row(row: Mapping[str, Any]) -> RecordedGroup | None:
    """Convert a row of `fr_groups`; None for a group of one rank, or if no dump lists the members."""
    members = tuple(sorted({rank for rank in row["members"] or () if rank is not None and rank >= 0}))
    if len(members) < 2:
        return None
    return RecordedGroup(int(row["group_id"]), str(row["description"] or ""), members)


def world_of(groups: Iterable[RecordedGroup]) -> int | None:
    """The number of ranks, if one group contains all ranks from 0 to the highest; else None."""
    found = list(groups)
    highest = max((group.members[-1] for group in found), default=-1)
    whole = any(len(group.members) == highest + 1 for group in found)
    return highest + 1 if whole else None


def plan_of_groups(groups: Sequence[RecordedGroup]) -> MeshPlan | None:
    """Derive the mesh from named groups: dimensions whose strides and sizes chain up to the number of ranks.

    None if a dimension's groups differ in size or step, or if a dimension between two others has no group.
    """
    world = world_of(groups)
    shapes: dict[str, set[tuple[int, int | None]]] = {}
    first: dict[str, RecordedGroup] = {}
    for group in groups:
        if name := _dimension(group.description):
            shapes.setdefault(name, set()).add((len(group.members), group.step))
            first.setdefault(name, group)
    known: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        size, step = next(iter(shape))
        if len(shape) == 1 and step is not None:
            known[name] = (size, step)
    usual = {name: shape for name, shape in known.items() if name in _factors()}
    # The experts' grid splits the same ranks differently: it counts only if nothing else covers all ranks.
    dims = _chain(usual, world) or _chain(known, world)
    if world is None or not dims:
        return None
    placed = [_placed(name, known[name], first[name]) for name in reversed(dims)]
    placed.append(MeshSetting("world_size", world, f"groups of {world} ranks", source=first[dims[0]].key))
    return MeshPlan(RECORDED, AS_WRITTEN, "recorded", placed)


def _chain(known: Mapping[str, tuple[int, int]], world: int | None) -> list[str]:
    """Dimensions from the innermost outwards, each starting where the previous one ends; empty if there is a gap."""
    dims: list[str] = []
    stride = 1
    while world is not None and stride < world:
        # A flattened dimension starts at the same step as its innermost part, and is longer.
        following = min(((size, name) for name, (size, step) in known.items() if step == stride), default=None)
        if following is None:
            return []
        dims.append(following[1])
        stride *= following[0]
    return dims if stride == world else []


def _factors() -> set[str]:
    """Names of dimensions whose product is the number of ranks in some framework."""
    return {name for framework in mesh_knowledge().frameworks.values() for name in framework.factors}


def _placed(name: str, shape: tuple[int, int], group: RecordedGroup) -> MeshSetting:
    size, step = shape
    text = f"{shown(group.description, _MOST_NAME)}: {size} ranks, step {step}"
    return MeshSetting(name, size, text, source=group.key)


def _dimension(description: str) -> str | None:
    """The name of the dimension in a group description; None if it names none."""
    if description.startswith("mesh_"):
        return shown(description.removeprefix("mesh_"), _MOST_NAME)
    return _single_axes().get(description)


def _single_axes() -> Mapping[str, str]:
    axes = (axis for framework in mesh_knowledge().frameworks.values() for axis in framework.axes)
    return {name: axis.name for axis in axes if len(axis.dims) == 1 for name in axis.groups}


def axes_with(layout: Layout, members: Sequence[int]) -> list[Axis]:
    """Return the axes of the layout in which these ranks form exactly one process group.

    Empty if there are none, or if a rank is outside the layout.
    """
    ranks = sorted(set(members))
    if not ranks or ranks[-1] >= layout.world_size:
        return []
    fitting = (axis for axis in layout.axes if axis.size == len(ranks))
    return [axis for axis in fitting if sorted(axis.members(ranks[0])) == ranks]


def axes_around(layout: Layout, members: Sequence[int]) -> list[Axis]:
    """Return the axes in which one process group contains all these ranks and further ones.

    Axes with the smallest groups come first. Empty if a rank is outside the layout.
    """
    ranks = set(members)
    if not ranks or max(ranks) >= layout.world_size:
        return []
    wider = [axis for axis in layout.axes if axis.size > len(ranks)]
    return sorted((axis for axis in wider if ranks <= set(axis.members(min(ranks)))), key=lambda axis: axis.size)


def axis_of_group(layout: Layout, group: RecordedGroup) -> Axis | None:
    """The axis of a recorded group, judged by its members and, if several axes match, its description; else None."""
    fitting = axes_with(layout, group.members)
    named = [axis for axis in fitting if group.description in axis.descriptions]
    chosen = named or fitting
    return chosen[0] if len(chosen) == 1 else None


# --- the meshes of a store: its plans laid out, or the arithmetic that shows why one is impossible

LARGEST_WORLD = 1 << 20


@dataclass(frozen=True)
class Mesh:
    """A plan and its outcome; the outcome is None if it is unknown in which order the program lays out the ranks."""

    plan: MeshPlan
    outcome: Layout | Misfit | None
    unknown: tuple[str, ...] = ()
    """Given degrees that the framework does not have."""

    @property
    def layout(self) -> Layout | None:
        """The laid-out ranks; None if the plan does not fit."""
        return self.outcome if isinstance(self.outcome, Layout) else None

    @property
    def gpus_per_host(self) -> int | None:
        """How many neighbouring ranks share a host; None if unknown."""
        number = self.plan.value("gpus_per_host")
        return number if number and number > 0 else None

    @property
    def dealt_to_hosts(self) -> int | None:
        """Number of hosts over which ranks are distributed round-robin; None if they are placed host by host."""
        hosts = self.plan.value("dealt_to_hosts")
        return hosts if hosts and hosts > 1 else None

    @property
    def hosts(self) -> int | None:
        """Number of hosts; None if unknown."""
        if self.dealt_to_hosts or self.gpus_per_host is None or self.layout is None:
            return self.dealt_to_hosts
        return -(-self.layout.world_size // self.gpus_per_host)

    def host_index(self, rank: int) -> int | None:
        """Index of a rank's host, in the launcher's order; None if unknown."""
        if self.dealt_to_hosts:
            return rank % self.dealt_to_hosts
        return None if self.gpus_per_host is None else rank // self.gpus_per_host

    def ranks_of_host(self, host: int) -> range:
        """The ranks on the host with an index; empty if ranks' hosts are unknown."""
        world = self.layout.world_size if self.layout else 0
        if self.dealt_to_hosts:
            return range(host, world, self.dealt_to_hosts)
        each = self.gpus_per_host or 0
        return range(host * each, min((host + 1) * each, world))


def meshes_of(
    plans: Iterable[MeshPlan], groups: Sequence[RecordedGroup], framework_id: str | None = None
) -> list[Mesh]:
    """Build the meshes of plans or, if there are none, the mesh shown by recorded groups.

    `framework_id`: the framework assumed for degrees that name none.
    """
    found = combined(plans)
    for plan in found:
        plan.framework_id = plan.framework_id or framework_id
    if not found and (recorded := plan_of_groups(groups)):
        found = combined([*plans, recorded])
    world = world_of(groups)
    return [mesh_of(plan, world) for plan in found]


class Meshes:
    """All meshes of a store, its recorded groups, and the questions asked about them."""

    def __init__(self, store: Store) -> None:
        self.groups: Sequence[RecordedGroup] = recorded_groups(store)
        self.questions = [(str(r["kind"]), str(r["value"])) for r in store.query("SELECT * FROM mesh_questions")]
        plans = plans_of_rows(store.query("SELECT * FROM mesh_settings ORDER BY rowid"))
        self.all = meshes_of(plans, self.groups, self.asked("framework"))

    def asked(self, kind: str) -> str | None:
        """Return the value of the first question about meshes of this kind, such as `rank` or `members`.

        The questions are the rows of `mesh_questions`. None if there is none of the kind.
        """
        return next((value for one, value in self.questions if one == kind), None)


def axis_names(store: Store) -> dict[int, str]:
    """Axis name per group id of `fr_groups`; empty if the job has several meshes."""
    meshes = store.derived(Meshes)
    layouts = [mesh.layout for mesh in meshes.all if mesh.layout]
    if len(layouts) != 1:
        return {}
    axes = ((group.id, axis_of_group(layouts[0], group)) for group in meshes.groups)
    return {id_: axis.name for id_, axis in axes if axis}


def mesh_of(plan: MeshPlan, recorded_world: int | None = None) -> Mesh:
    """Lay out one plan; `recorded_world` is the number of ranks used if the plan gives none."""
    framework = plan.framework
    if framework is None:
        return Mesh(plan, None)
    world = plan.value("world_size")
    outcome = lay_out(framework, plan.given, recorded_world if world is None else world)
    if isinstance(outcome, Layout) and outcome.world_size > LARGEST_WORLD:
        outcome = Misfit(f"{outcome.shape} = {outcome.world_size} ranks is more than any job has.", plan.given)
    unknown = tuple(name for name in plan.given if name not in framework.degrees)
    return Mesh(plan, outcome, unknown)
