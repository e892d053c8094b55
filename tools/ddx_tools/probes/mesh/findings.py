"""Findings about the meshes of a store: sizes that do not fit, placement, and answers to the questions asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ddx_tools.analysis.mesh.groups import Mesh, Meshes, RecordedGroup, axes_around, axes_with, axis_of_group
from ddx_tools.analysis.mesh.knowledge import Divides, mesh_knowledge
from ddx_tools.analysis.mesh.layout import Axis, Layout, Misfit
from ddx_tools.analysis.mesh.plan import CLAIMED_GPUS, CLUSTER_GPUS, CLUSTER_HOSTS
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Evidence, Finding, Severity
from ddx_tools.model.files.names import shown
from ddx_tools.model.grouping import gathered
from ddx_tools.model.rank_ranges import parse_ranks
from ddx_tools.model.rank_spans import rank_spans


def mesh_findings(store: Store) -> list[Finding]:
    """Return the findings about all meshes in the store, in which the rows of all hosts are merged."""
    meshes = store.derived(Meshes)
    return [finding for mesh in meshes.all for finding in _of(mesh, meshes)]


def _of(mesh: Mesh, meshes: Meshes) -> Iterator[Finding]:
    layout = mesh.layout
    yield from described(mesh)
    yield from check(mesh)
    if layout is None:
        return
    for kind, value in meshes.questions:
        if kind == "rank":
            yield where_is(mesh, layout, int(value))
        elif kind == "members":
            yield whose_group(layout, value)
        elif kind == "group":
            yield what_is(layout, value)
    yield from recorded_axes(layout, meshes.groups)


# --- faults of a mesh: sizes that do not fit, and groups that span hosts

_TOLD = {
    "heads": "attention heads",
    "kv_heads": "key-value heads",
    "layers": "layers",
    "experts": "experts",
    "seq_len": "tokens per sequence",
}


def check(mesh: Mesh) -> Iterator[Finding]:
    """Yield a finding for each size that does not fit the world size, and each heavy axis that spans hosts."""
    yield from _larger_than_its_cluster(mesh)
    if isinstance(mesh.outcome, Misfit) and not mesh.outcome.open_world:
        yield _misfit(mesh, mesh.outcome)
    elif layout := mesh.layout:
        for rule in layout.framework.divides:
            yield from _indivisible(mesh, layout, rule)
        if (mesh.hosts or 1) > 1:
            yield from _crossing(mesh, layout)


def _larger_than_its_cluster(mesh: Mesh) -> Iterator[Finding]:
    """AReaL's allocation takes more GPUs than the cluster has in the same configuration."""
    claimed, hosts, there = (mesh.plan.value(name) for name in (CLAIMED_GPUS, CLUSTER_HOSTS, CLUSTER_GPUS))
    if claimed is None or not hosts or not there or claimed <= there:
        return
    yield Finding(
        code="mesh.size_mismatch",
        severity=Severity.FAILURE,
        summary=f"The allocation takes {claimed} GPUs, but the cluster has {there}: cluster.n_nodes {hosts} × "
        f"cluster.n_gpus_per_node {there // hosts}.",
        evidence=mesh.plan.evidence([CLAIMED_GPUS]),
        attributes={
            "dims": dict(mesh.plan.given),
            "world_size": there,
            "left_out": 0,
            "basis": "mesh",
            "framework": mesh.plan.framework_id,
        },
    )


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
    does = "rejects that" if rule.level == "failure" else "rejects that unless an option spreads them unevenly"
    yield Finding(
        code="mesh.not_divisible",
        severity=Severity.FAILURE if rule.level == "failure" else Severity.WARNING,
        summary=f"{whole} {_TOLD[rule.of]} cannot be divided evenly by {parts}{product} ({whole} / {divisor} = "
        f"{whole / divisor:.4g}); {framework.title} {does}.",
        evidence=mesh.plan.evidence([rule.of, *by]),
        attributes={"of": rule.of, "value": whole, "by": by, "divisor": divisor, "source": framework.source},
    )


def _crossing(mesh: Mesh, layout: Layout) -> Iterator[Finding]:
    """Axes that should stay inside hosts but span them."""
    told: set[tuple[int, ...]] = set()
    for axis in layout.axes:
        traffic = mesh_knowledge().traffic_of(axis.name)
        if traffic is None or traffic.load != "heavy" or len(axis.dims) > 1:
            continue
        members = tuple(axis.members(0))
        if members not in told and (finding := _spans_hosts(mesh, axis, traffic.says)):
            yield finding
        told.add(members)  # another axis may have the same groups under another name


def _spans_hosts(mesh: Mesh, axis: Axis, carries: str) -> Finding | None:
    groups = list(axis.grid.groups(axis.dims))
    hosts = [len({mesh.host_index(rank) for rank in members}) for members in groups]
    crossing = sum(number > 1 for number in hosts)
    if not crossing:
        return None
    each = mesh.gpus_per_host
    larger = each is not None and axis.size > each
    if larger:
        why = f"its {axis.size} ranks exceed the {each} GPUs of a host"
    elif mesh.dealt_to_hosts:
        why = "ranks are assigned to the hosts round-robin"
    else:
        why = f"its {axis.size} ranks would fit on one host, but are {_step(axis)} apart or straddle a host boundary"
    return Finding(
        code="mesh.crosses_hosts",
        severity=Severity.WARNING,
        ranks=next(members for members, number in zip(groups, hosts, strict=True) if number > 1)[:64],
        summary=f"{crossing} of {len(groups)} groups of the axis {axis.name} span up to {max(hosts)} hosts: {why}. "
        f"There the axis carries {carries} over the network.",
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


# --- answers about a mesh: where a rank is, which axis a list of ranks or a group's name belongs to

_LOADS = ("heavy", "medium", "light")
_MOST_NAME = 80
_MOST_AXES = 12


def described(mesh: Mesh) -> Iterator[Finding]:
    """Yield one finding with the mesh's sizes, their order and whose order that is, or with what is missing to know
    them."""
    if mesh.layout:
        yield _laid_out(mesh, mesh.layout)
    elif mesh.outcome is None:
        why = "the program's order of these dimensions is unknown. Name its framework (--framework), or "
        yield _open(mesh, f"{why}the dimensions in order, outermost first (--dims).")
    elif isinstance(mesh.outcome, Misfit) and mesh.outcome.open_world:
        yield _open(mesh, f"{mesh.outcome.why} {mesh.outcome.instead}")


def _open(mesh: Mesh, lacking: str) -> Finding:
    told = ", ".join(f"{name} = {size}" for name, size in mesh.plan.given.items())
    return Finding(
        code="mesh.layout",
        severity=Severity.NOTICE,
        summary=f"{_label(mesh)}{told} is set, but {lacking}",
        evidence=mesh.plan.evidence(mesh.plan.given),
        attributes={"framework": mesh.plan.framework_id, "dims": mesh.plan.given},
    )


def _label(mesh: Mesh) -> str:
    return f"{shown(mesh.plan.label, _MOST_NAME)}: " if mesh.plan.label else ""


def _laid_out(mesh: Mesh, layout: Layout) -> Finding:
    plan = mesh.plan
    framework, innermost = layout.framework, _innermost(layout)
    hosts = f"; {mesh.hosts} hosts" if mesh.hosts else ""
    if mesh.gpus_per_host and hosts:
        hosts += f" of {mesh.gpus_per_host}" + (", ranks assigned round-robin" if mesh.dealt_to_hosts else "")
    ignored = f" Left out, because it has no such dimension: {', '.join(mesh.unknown)}." if mesh.unknown else ""
    told = f"; neighbouring ranks differ in {innermost}" if innermost else ""
    return Finding(
        code="mesh.layout",
        severity=Severity.NOTICE if mesh.unknown else Severity.INFO,
        summary=f"{_label(mesh)}{layout.shape} = {layout.world_size} ranks{told}{hosts} ({framework.title}).{ignored}",
        evidence=plan.evidence([*plan.given, "world_size"])[:8],
        attributes={
            "framework": plan.framework_id,
            "order": list(layout.grid.names),
            "dims": layout.degrees,
            "world_size": layout.world_size,
            "axes": {axis.name: axis.size for axis in layout.axes},
            "source": framework.source,
            "checked": framework.checked,
        },
    )


def _innermost(layout: Layout) -> str | None:
    return next((name for name in reversed(layout.grid.names) if layout.grid.size(name) > 1), None)


def where_is(mesh: Mesh, layout: Layout, rank: int) -> Finding:
    """Return a finding with a rank's coordinates, the members of its groups, and the ranks that stop when it stops."""
    if rank >= layout.world_size:
        last = layout.world_size - 1
        summary = f"There is no rank {rank}: the mesh {layout.shape} has ranks 0-{last}."
        return Finding(code="mesh.rank", severity=Severity.NOTICE, summary=summary, attributes={"rank": rank})
    coordinates = {name: at for name, at in layout.grid.coordinates(rank).items() if layout.grid.size(name) > 1}
    axes = _by_load(layout.axes)[:_MOST_AXES]
    groups = {axis.name: rank_spans(axis.members(rank)) for axis in axes}
    alike = gathered((ranks, name) for name, ranks in groups.items())
    host = mesh.host_index(rank)
    place = ", ".join(f"{name} {at}" for name, at in coordinates.items()) or "alone"
    on = "" if host is None else f" on host {host}"
    listed = "; ".join(f"{', '.join(names)} {ranks}" for ranks, names in alike.items())
    return Finding(
        code="mesh.rank",
        severity=Severity.INFO,
        ranks=[rank],
        summary=f"Rank {rank} is {place}{on}. Its groups: {listed or 'none'}.{_fate(mesh, layout, rank, axes)}",
        evidence=mesh.plan.evidence(coordinates),
        attributes={"rank": rank, "coordinates": coordinates, "host_index": host, "groups": groups},
    )


def _fate(mesh: Mesh, layout: Layout, rank: int, axes: Sequence[Axis]) -> str:
    """Which ranks wait if this one stops: those on heavy axes within a layer, the others by the end of the step."""
    by_load: dict[str, set[int]] = {}
    for axis in axes:
        traffic = mesh_knowledge().traffic_of(axis.name)
        by_load.setdefault(traffic.load if traffic else "light", set()).update(axis.members(rank))
    direct = {other for ranks in by_load.values() for other in ranks} - {rank}
    if not direct:
        return ""
    text = " If it stops,"
    soon = by_load.get("heavy", set()) | by_load.get("medium", set())
    if soon - {rank}:
        text += f" {rank_spans(soon - {rank})} wait in the same layer,"
    later = direct - soon
    if later:
        text += f" {rank_spans(later)} by the end of the step,"
    rest = layout.world_size - 1 - len(direct)
    text += f" and the other {rest} behind them." if rest else " and no other ranks remain."
    host = mesh.host_index(rank)
    beside = mesh.ranks_of_host(host) if host is not None else range(0)
    return f"{text} Its host has ranks {rank_spans(beside)}." if len(beside) > 1 else text


def _by_load(axes: Sequence[Axis]) -> list[Axis]:
    """The axes, those whose groups wait first at the front."""

    def place(axis: Axis) -> int:
        traffic = mesh_knowledge().traffic_of(axis.name)
        return _LOADS.index(traffic.load) if traffic else len(_LOADS)

    return sorted(axes, key=place)


def whose_group(layout: Layout, asked: str) -> Finding:
    """Return a finding that says which axis the ranks form a group of, or which group contains them, or that none
    does."""
    members = parse_ranks(asked)
    exact = axes_with(layout, members)
    named = rank_spans(members)
    if members[-1] >= layout.world_size:
        text = f"Ranks {named}: the mesh only has ranks 0-{layout.world_size - 1}."
        return _axis_finding(text, [], members, Severity.NOTICE)
    if exact:
        also = f" (also of {', '.join(axis.name for axis in exact[1:])})" if len(exact) > 1 else ""
        words = f"Ranks {named} are a group of the axis {exact[0].name}{also}{_fixed(exact[0], members[0])}."
        return _axis_finding(words, exact, members)
    around = axes_around(layout, members)
    if around:
        whole = rank_spans(around[0].members(members[0]))
        text = f"Ranks {named} are only part of a group: {whole}, of the axis {around[0].name}."
        return _axis_finding(text, [], members, Severity.NOTICE)
    return _axis_finding(f"Ranks {named} are neither a group of this mesh nor in one.", [], members, Severity.NOTICE)


def what_is(layout: Layout, name: str) -> Finding:
    """Return a finding that says which axis a group with that name or description belongs to."""
    axis = layout.axis(name)
    label = shown(name, _MOST_NAME)
    if axis is None:
        known = ", ".join(one.name for one in layout.axes)
        text = f"No axis of this mesh has groups called {label}: it has {known or 'none of more than one rank'}."
        return _axis_finding(text, [], [], Severity.NOTICE)
    count = layout.world_size // axis.size
    first = rank_spans(axis.members(0))
    text = f"{label} is the axis {axis.name}: {count} groups of {axis.size} ranks, the first is {first}."
    return _axis_finding(text, [axis], [])


def recorded_axes(layout: Layout, groups: Sequence[RecordedGroup]) -> Iterator[Finding]:
    """Yield findings that say which axes the groups in flight records belong to, per group description."""
    kinds = gathered(
        (group.description, group)
        for group in groups
        if len(group.members) < layout.world_size or layout.axis(group.description)
    )
    for description, same in kinds.items():
        axes = {group.key: axis_of_group(layout, group) for group in same}
        fitting = {axis.name: axis for axis in axes.values() if axis}
        label = shown(description, _MOST_NAME) if description not in ("", "undefined") else "groups without a name"
        evidence = [Evidence(source=same[0].key, quote=f"{label}: {rank_spans(same[0].members)}"[:200])]
        strange = [group for group in same if axes[group.key] is None]
        named = layout.axis(description)
        if named and fitting and named.name not in fitting:
            other = ", ".join(fitting)
            text = f"Recorded {label} are groups of the axis {other}: the job orders its dimensions differently."
            yield _axis_finding(text, list(fitting.values()), [], Severity.WARNING, evidence)
        elif fitting:
            told = _counts(axes, fitting)
            yield _axis_finding(f"Recorded {label}: {told}.", list(fitting.values()), [], evidence=evidence)
        if strange:
            ranks = list(strange[0].members)
            text = f"{len(strange)} recorded {label} do not match any group of this mesh: {rank_spans(ranks)}."
            yield _axis_finding(text, [], ranks, Severity.NOTICE, evidence)


def _counts(axes: Mapping[str, Axis | None], fitting: Mapping[str, Axis]) -> str:
    parts = []
    for name in fitting:
        number = sum(1 for axis in axes.values() if axis and axis.name == name)
        parts.append(f"{number} of the axis {name}")
    return ", ".join(parts)


def _fixed(axis: Axis, rank: int) -> str:
    """The coordinates that the members of a group share, as text."""
    here = axis.grid.coordinates(rank)
    shared = [f"{name} {at}" for name, at in here.items() if name not in axis.dims and axis.grid.size(name) > 1]
    return f", at {', '.join(shared)}" if shared else ""


def _axis_finding(
    summary: str,
    axes: Sequence[Axis],
    ranks: Sequence[int],
    severity: Severity = Severity.INFO,
    evidence: Sequence[Evidence] = (),
) -> Finding:
    attributes = {"axis": axes[0].name if len(axes) == 1 else None, "axes": [axis.name for axis in axes]}
    return Finding(
        code="mesh.group_axis",
        severity=severity,
        ranks=list(ranks)[:64],
        summary=summary,
        evidence=list(evidence),
        attributes=attributes,
    )
