"""The meshes of a store: its plans laid out, or the arithmetic that shows why one of them cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddx_tools.mesh.groups import RecordedGroup, axis_of_group, plan_of_groups, recorded_groups, world_of
from ddx_tools.mesh.layout import Layout, Misfit, lay_out
from ddx_tools.mesh.plan import Plan, combined, plans_of_rows
from ddx_tools.store import Store

LARGEST_WORLD = 1 << 20


@dataclass(frozen=True)
class Mesh:
    """A plan and what becomes of it; no outcome: nothing says in which order its program lays out the ranks."""

    plan: Plan
    outcome: Layout | Misfit | None
    unknown: tuple[str, ...] = ()
    """Degrees that the framework does not have."""

    @property
    def layout(self) -> Layout | None:
        """The grid, if there is one."""
        return self.outcome if isinstance(self.outcome, Layout) else None

    @property
    def gpus_per_host(self) -> int | None:
        """How many neighbouring ranks share a host, if something says it."""
        number = self.plan.value("gpus_per_host")
        return number if number and number > 0 else None

    @property
    def dealt_to_hosts(self) -> int | None:
        """Over how many hosts ranks are dealt in turn, instead of host by host."""
        hosts = self.plan.value("dealt_to_hosts")
        return hosts if hosts and hosts > 1 else None

    @property
    def hosts(self) -> int | None:
        """How many hosts there are."""
        if self.dealt_to_hosts or self.gpus_per_host is None or self.layout is None:
            return self.dealt_to_hosts
        return -(-self.layout.world_size // self.gpus_per_host)

    def host_index(self, rank: int) -> int | None:
        """The place of a rank's host among the hosts, in the launcher's order."""
        if self.dealt_to_hosts:
            return rank % self.dealt_to_hosts
        return None if self.gpus_per_host is None else rank // self.gpus_per_host

    def ranks_of_host(self, host: int) -> range:
        """The ranks on a host; none if nothing says where ranks are."""
        world = self.layout.world_size if self.layout else 0
        if self.dealt_to_hosts:
            return range(host, world, self.dealt_to_hosts)
        each = self.gpus_per_host or 0
        return range(host * each, min((host + 1) * each, world))


def meshes_of(plans: Iterable[Plan], groups: Sequence[RecordedGroup], framework_id: str | None = None) -> list[Mesh]:
    """The meshes that plans make; with none of them, the one that recorded groups show.

    `framework_id` is whose order degrees are in that nothing else gives a framework.
    """
    found = combined(plans)
    for plan in found:
        plan.framework_id = plan.framework_id or framework_id
    if not found and (recorded := plan_of_groups(groups)):
        found = combined([*plans, recorded])
    world = world_of(groups)
    return [mesh_of(plan, world) for plan in found]


class Meshes:
    """All meshes of a store, the recorded groups beside them, and what somebody asked."""

    def __init__(self, store: Store) -> None:
        self.groups: Sequence[RecordedGroup] = recorded_groups(store)
        self.questions = [(str(r["kind"]), str(r["value"])) for r in store.query("SELECT * FROM mesh_questions")]
        plans = plans_of_rows(store.query("SELECT * FROM mesh_settings ORDER BY rowid"))
        self.all = meshes_of(plans, self.groups, self.asked("framework"))

    def asked(self, kind: str) -> str | None:
        """What the first question of a kind is about."""
        return next((value for one, value in self.questions if one == kind), None)


def axis_names(store: Store) -> dict[int, str]:
    """Groups of `fr_groups` by identity, with the axis that each is of; nothing if the job has several meshes."""
    meshes = store.derived(Meshes)
    layouts = [mesh.layout for mesh in meshes.all if mesh.layout]
    if len(layouts) != 1:
        return {}
    axes = ((group.id, axis_of_group(layouts[0], group)) for group in meshes.groups)
    return {id_: axis.name for id_, axis in axes if axis}


def mesh_of(plan: Plan, recorded_world: int | None = None) -> Mesh:
    """One plan laid out; the number of ranks that records show counts where the plan has none."""
    framework = plan.framework
    if framework is None:
        return Mesh(plan, None)
    world = plan.value("world_size")
    outcome = lay_out(framework, plan.given, recorded_world if world is None else world)
    if isinstance(outcome, Layout) and outcome.world_size > LARGEST_WORLD:
        outcome = Misfit(f"{outcome.shape} = {outcome.world_size} ranks is more than any job has.", plan.given)
    unknown = tuple(name for name in plan.given if name not in framework.degrees)
    return Mesh(plan, outcome, unknown)
