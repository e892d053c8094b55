"""Mesh plans: the degrees that were set for a job's mesh, with the job size and the model's dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ddx_tools.analysis.mesh.knowledge import Framework, as_written, mesh_knowledge
from ddx_tools.evidence.schema import as_row
from ddx_tools.model.diagnosis import Evidence
from ddx_tools.model.mesh_setting import MeshSetting

AS_WRITTEN = "as-written"
"""Used instead of a framework id: the dimensions are listed in the order in which they vary."""
CLAIMED_GPUS, CLUSTER_HOSTS, CLUSTER_GPUS = "claimed_gpus", "cluster_hosts", "cluster_gpus"
"""Settings that are not dimensions: what AReaL's allocation uses, and what its cluster has."""
TYPED = "typed"
"""Prefix of the ids of plans from ddx's own command line, which take precedence over plans that were read."""
JOB_FACTS = ("world_size", "gpus_per_host", "dealt_to_hosts")
MODEL_FACTS = ("heads", "kv_heads", "layers", "experts", "seq_len")


@dataclass
class MeshPlan:
    """The mesh settings of one framework in one place, such as a command line or a file."""

    id: str
    framework_id: str | None
    """A key of `mesh_orders.yaml`, `as-written`, or None if it is unknown whose degrees they are."""
    label: str = ""
    """The name of this mesh if a job has several, such as `actor`."""
    placed: list[MeshSetting] = field(default_factory=list)

    @property
    def is_typed(self) -> bool:
        """Whether it comes from ddx's own command line."""
        return self.id.startswith(TYPED)

    def value(self, name: str) -> int | None:
        """The value of the last setting with this name; None if there is none."""
        return next((one.value for one in reversed(self.placed) if one.name == name), None)

    @property
    def given(self) -> dict[str, int]:
        """The given degrees, in their original order."""
        facts = (*JOB_FACTS, *MODEL_FACTS, CLAIMED_GPUS, CLUSTER_HOSTS, CLUSTER_GPUS)
        return {one.name: one.value for one in self.placed if one.name not in facts}

    @property
    def framework(self) -> Framework | None:
        """The framework that orders its ranks; None if unknown."""
        if self.framework_id == AS_WRITTEN:
            return as_written(self.given)
        return mesh_knowledge().frameworks[self.framework_id] if self.framework_id else None

    def evidence(self, names: Iterable[str]) -> list[Evidence]:
        """Evidence for these settings, the last one of each name."""
        last = {one.name: one for one in self.placed if one.name in set(names)}
        return [Evidence(source=one.source, line=one.line, quote=one.text[:200]) for one in last.values()]


def combined(plans: Iterable[MeshPlan]) -> list[MeshPlan]:
    """Combine plans that describe the same mesh: arguments on a command line override a file's degrees.

    Settings of the job or the model without degrees apply to all plans. Dimensions given on ddx's command line replace
    all other plans, and its job settings override the rest.
    """
    found = list(plans)
    with_degrees = [plan for plan in found if plan.given]
    typed = [plan for plan in with_degrees if plan.is_typed]
    merged: dict[tuple[str | None, str], MeshPlan] = {}
    for plan in typed or with_degrees:
        same = merged.setdefault((plan.framework_id, plan.label), MeshPlan(plan.id, plan.framework_id, plan.label))
        same.placed += plan.placed
    facts = (*JOB_FACTS, *MODEL_FACTS)
    beside = with_degrees if typed else []
    general = [plan for plan in found if plan in beside or not plan.given]
    loose = [one for plan in general for one in plan.placed if one.name in facts]
    overruling = [one for plan in found if plan.is_typed for one in plan.placed if one.name in facts]
    for plan in merged.values():
        plan.placed = _unless_said(plan, loose) + plan.placed + overruling
    return list(merged.values())


def _unless_said(plan: MeshPlan, loose: Iterable[MeshSetting]) -> list[MeshSetting]:
    return [one for one in loose if plan.value(one.name) is None]


def plan_rows(plans: Iterable[MeshPlan]) -> Iterator[dict[str, object]]:
    """Convert plans to rows of `mesh_settings`."""
    for plan in plans:
        for one in plan.placed:
            told = {"plan": plan.id, "framework": plan.framework_id, "text": one.text[:300]}
            yield as_row("mesh_settings", one, plan, **told, source_line=one.line)


def plans_of_rows(rows: Iterable[dict[str, object]]) -> list[MeshPlan]:
    """Convert rows of `mesh_settings` back to plans."""
    found: dict[str, MeshPlan] = {}
    for row in rows:
        id_, framework = str(row["plan"]), row["framework"]
        plan = found.setdefault(
            id_, MeshPlan(id_, None if framework is None else str(framework), str(row["label"] or ""))
        )
        line = None if row["source_line"] is None else int(str(row["source_line"]))
        value, text = int(str(row["value"])), str(row["text"])
        plan.placed.append(MeshSetting(str(row["name"]), value, text, line, str(row["source"])))
    return list(found.values())
