"""What is wrong with a mesh, or badly placed: sizes that do not fit, and groups that span hosts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ddx_tools.mesh.knowledge import Divides, mesh_knowledge
from ddx_tools.mesh.layout import Axis, Layout, Misfit
from ddx_tools.mesh.meshes import Mesh
from ddx_tools.model import Finding, Severity

_TOLD = {
    "heads": "attention heads",
    "kv_heads": "key-value heads",
    "layers": "layers",
    "experts": "experts",
    "seq_len": "tokens of a sequence",
}


def check(mesh: Mesh) -> Iterator[Finding]:
    """Everything that speaks against one mesh."""
    if isinstance(mesh.outcome, Misfit) and not mesh.outcome.open_world:
        yield _misfit(mesh, mesh.outcome)
    elif layout := mesh.layout:
        for rule in layout.framework.divides:
            yield from _indivisible(mesh, layout, rule)
        if (mesh.hosts or 1) > 1:
            yield from _crossing(mesh, layout)


def _misfit(mesh: Mesh, misfit: Misfit) -> Finding:
    dims = {name: size for name, size in misfit.dims.items() if size != 1} or misfit.dims
    return Finding(
        code="mesh.size_mismatch",
        severity=Severity.FAILURE,
        summary=" ".join(filter(None, [misfit.why, misfit.instead])),
        evidence=mesh.plan.evidence([*dims, "world_size"]),
        attributes={
            "dims": dims,
            "world_size": mesh.plan.value("world_size"),
            "left_out": 0,
            "basis": "mesh",
            "framework": mesh.plan.framework_id,
        },
    )


def _indivisible(mesh: Mesh, layout: Layout, rule: Divides) -> Iterator[Finding]:
    whole = mesh.plan.value(rule.of)
    by = {name: layout.degrees[name] for name in rule.by if layout.degrees.get(name, 1) > 1}
    divisor = prod(size * rule.times.get(name, 1) for name, size in by.items())
    if not whole or whole < 1 or divisor == 1 or whole % divisor == 0:
        return
    if rule.unless == "multiple" and divisor % whole == 0:
        return
    factors = {name: f"{rule.times[name]} × " if name in rule.times else "" for name in by}
    parts = " × ".join(f"{factors[name]}{name} {size}" for name, size in by.items())
    product = f" = {divisor}" if len(by) > 1 or rule.times.keys() & by.keys() else ""
    framework = layout.framework
    does = "refuses that" if rule.level == "failure" else "refuses that, unless an option spreads them unevenly"
    yield Finding(
        code="mesh.not_divisible",
        severity=Severity.FAILURE if rule.level == "failure" else Severity.WARNING,
        summary=f"{whole} {_TOLD[rule.of]} cannot be divided by {parts}{product} ({whole} / {divisor} = "
        f"{whole / divisor:.4g}); {framework.title} {does}.",
        evidence=mesh.plan.evidence([rule.of, *by]),
        attributes={"of": rule.of, "value": whole, "by": by, "divisor": divisor, "source": framework.source},
    )


def _crossing(mesh: Mesh, layout: Layout) -> Iterator[Finding]:
    """Axes that belong inside hosts, and do not stay there."""
    told: set[tuple[int, ...]] = set()
    for axis in layout.axes:
        traffic = mesh_knowledge().traffic_of(axis.name)
        if traffic is None or traffic.load != "heavy" or len(axis.dims) > 1:
            continue
        members = tuple(axis.members(0))
        if members not in told and (finding := _spans_hosts(mesh, axis, traffic.says)):
            yield finding
        told.add(members)  # the groups of another axis may be the same ones, under another name


def _spans_hosts(mesh: Mesh, axis: Axis, carries: str) -> Finding | None:
    groups = list(axis.grid.groups(axis.dims))
    hosts = [len({mesh.host_index(rank) for rank in members}) for members in groups]
    crossing = sum(number > 1 for number in hosts)
    if not crossing:
        return None
    each = mesh.gpus_per_host
    larger = each is not None and axis.size > each
    if larger:
        why = f"its {axis.size} ranks are more than the {each} GPUs of a host"
    elif mesh.dealt_to_hosts:
        why = "ranks are dealt out to the hosts in turn"
    else:
        why = f"its {axis.size} ranks would fit on one, but are {_step(axis)} apart or do not begin with a host"
    return Finding(
        code="mesh.crosses_hosts",
        severity=Severity.WARNING,
        ranks=next(members for members, number in zip(groups, hosts, strict=True) if number > 1)[:64],
        summary=f"{crossing} of {len(groups)} groups of the axis {axis.name} span up to {max(hosts)} hosts: {why}. "
        f"It carries {carries}, over the network there.",
        evidence=mesh.plan.evidence([*axis.dims, "gpus_per_host", "dealt_to_hosts"]),
        attributes={
            "axis": axis.name,
            "size": axis.size,
            "gpus_per_host": each,
            "dealt": mesh.dealt_to_hosts is not None,
            "crossing": crossing,
            "groups": len(groups),
            "hosts": max(hosts),
            "larger_than_host": larger,
        },
    )


def _step(axis: Axis) -> int:
    return min(axis.grid.strides[name] for name in axis.dims if axis.grid.size(name) > 1)
