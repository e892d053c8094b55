"""How frameworks order their parallel dimensions: validated models of `knowledge/mesh_orders.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ddx_tools.knowledge.load import shipped


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DerivedSize(_Entry):
    """A size that the framework computes: the product of `times` divided evenly by the product of `over`."""

    times: list[str]
    over: list[str]


class GridOrder(_Entry):
    """One view of all ranks as a grid: its dimensions, outermost first."""

    order: list[str]
    condition: str | None = Field(None, alias="if")
    """The degree that must be above 1 for this grid to exist; None: it always does."""


class AxisOfGrid(_Entry):
    """Groups of ranks that differ only in these dimensions of a grid."""

    name: str
    grid: str
    dims: list[str]
    groups: list[str] = Field(default_factory=list)
    """Descriptions of its process groups, in addition to `mesh_<name>`."""


class Divides(_Entry):
    """A model size that must be a multiple of the product of these degrees."""

    of: Literal["heads", "kv_heads", "layers", "experts", "seq_len"]
    by: list[str]
    times: dict[str, int] = Field(default_factory=dict)
    """Extra factors for degrees above 1: with context parallelism twice its degree, for load balancing."""
    unless: Literal["multiple"] | None = None
    level: Literal["failure", "warning"]


class Framework(_Entry):
    """A framework's way to lay out ranks: its degrees, grids, axes and constraints."""

    title: str
    source: str
    checked: Literal["recorded", "cited"]
    spellings: list[str]
    degrees: dict[str, int | str]
    inferred: str | None = None
    alone: str | None = None
    among: dict[str, list[int | str]] = Field(default_factory=dict)
    derived: dict[str, DerivedSize] = Field(default_factory=dict)
    grids: dict[str, GridOrder]
    axes: list[AxisOfGrid]
    divides: list[Divides] = Field(default_factory=list)

    @property
    def factors(self) -> list[str]:
        """The degrees whose product is the number of ranks, outermost first."""
        return self.grids["dense"].order


class Traffic(_Entry):
    """The traffic between the ranks of some axes."""

    axes: list[str]
    load: Literal["heavy", "medium", "light"]
    says: str


class MeshKnowledge(_Entry):
    """The contents of `mesh_orders.yaml`."""

    frameworks: dict[str, Framework]
    usual_axes: dict[str, list[str]]
    traffic: list[Traffic]

    def traffic_of(self, axis: str) -> Traffic | None:
        """The traffic on an axis, if its name is known."""
        return next((traffic for traffic in self.traffic if axis in traffic.axes), None)


@cache
def mesh_knowledge() -> MeshKnowledge:
    """Load the mesh knowledge that ships with ddx. Raises ValidationError if the file is invalid."""
    return MeshKnowledge.model_validate(shipped("mesh_orders.yaml"))


def framework_of(option: str) -> str | None:
    """The only framework with this spelling of an option; None if several or no frameworks have it."""
    name = option.lstrip("-+").rpartition(".")[2].replace("-", "_")
    known = [id_ for id_, framework in mesh_knowledge().frameworks.items() if name in framework.spellings]
    return known[0] if len(known) == 1 else None


def as_written(sizes: dict[str, int]) -> Framework:
    """A framework for dimensions in the order given, outermost first, as `init_device_mesh` takes them."""
    usual = {name: [dim for dim in dims if dim in sizes] for name, dims in mesh_knowledge().usual_axes.items()}
    joined = {name: dims for name, dims in usual.items() if len(dims) > 1 and name not in sizes}
    axes = {dim: [dim] for dim in sizes} | joined
    return Framework(
        title="in the order given, the outermost dimension first",
        source="torch.distributed.device_mesh.init_device_mesh (torch 2.13)",
        checked="recorded",
        spellings=[],
        degrees=dict.fromkeys(sizes, 1),
        inferred=next((name for name, size in sizes.items() if size == -1), None),
        grids={"dense": GridOrder.model_validate({"order": list(sizes)})},
        axes=[AxisOfGrid(name=name, grid="dense", dims=dims) for name, dims in axes.items()],
        divides=[Divides(of="heads", by=["tp"], level="warning")] if "tp" in sizes else [],
    )
