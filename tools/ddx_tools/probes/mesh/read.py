"""Reads mesh plans from user files: configuration files, scripts, logs, and notes with commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ddx_tools.analysis.mesh.knowledge import framework_of
from ddx_tools.analysis.mesh.plan import CLAIMED_GPUS, CLUSTER_GPUS, CLUSTER_HOSTS, MeshPlan
from ddx_tools.knowledge.launch_facts import dealing_option, facts_of
from ddx_tools.model import launch as model
from ddx_tools.model.mesh_setting import MeshSetting
from ddx_tools.parsers.launch.areal_allocation import Allocation, Claimed, claimed, find_allocations
from ddx_tools.parsers.launch.environment_file import FoundEnvironment, FoundLaunch, read_file
from ddx_tools.parsers.launch.framework_files import (
    accelerate_settings,
    deepspeed_settings,
    megatron_model,
    model_settings,
    stages_vary_before_replicas,
    torchtitan_settings,
)
from ddx_tools.parsers.launch.launch_command import CommandLayer, layers_of

_OF_ALLOCATION = {"fsdp": "areal-fsdp", "archon": "archon", "megatron": "megatron"}


def plans_in(path: str, data: bytes, source: str) -> list[MeshPlan]:
    """Return the mesh plans that a file sets; an empty list if it sets none. Accepts any bytes."""
    if b"\0" in data[:4096]:
        return []
    text = data.decode("utf-8", "replace")
    name = path.rsplit("/", 1)[-1].lower()
    plans = []
    if name.endswith(".toml"):
        plans.append(_plan(source, "torchtitan", torchtitan_settings(text)))
    elif name.endswith(".json"):
        degrees = deepspeed_settings(text)
        plans.append(_plan(source, "deepspeed" if degrees else None, degrees or model_settings(text)))
    else:
        accelerate = accelerate_settings(text)
        plans.append(_plan(source, "accelerate", accelerate))
        if not accelerate:
            plans += _plans_of_commands(path, data, text, source)
        whole = claimed(text)
        plans += [_plan_of_allocation(one, line, source, whole) for one, line in find_allocations(text)]
    return [plan for plan in plans if plan.placed]


def recognises(path: str, data: bytes) -> bool:
    """Return whether a file sets a mesh."""
    return bool(plans_in(path, data, path))


def plans_of_words(words: list[list[str]], source: str) -> list[MeshPlan]:
    """Return the mesh plan that a live job's command lines set; an empty list if they set no dimension.

    `words` has the launcher's command line first, then a rank's, each split into its arguments. `source` names their
    origin in the plan.
    """
    launches = [FoundLaunch(layers, 1, True) for command in words if (layers := layers_of(command))]
    text = "\n".join(" ".join(command) for command in words)
    plan = _plan_of_launches(FoundEnvironment("process", launches=launches), text, source)
    plan.placed = [replace(one, line=None) for one in plan.placed]
    return [plan] if plan.placed else []


def engine_of(allocation: Allocation) -> str:
    """Return the id of the framework whose dimension order a training engine of AReaL uses."""
    return _OF_ALLOCATION[allocation.backend]


def _plan(source: str, framework_id: str | None, settings: list[MeshSetting]) -> MeshPlan:
    return MeshPlan(source, framework_id, placed=[replace(setting, source=source) for setting in settings])


def _plan_of_allocation(allocation: Allocation, line: int, source: str, whole: Claimed | None) -> MeshPlan:
    degrees = allocation.degrees.items()
    placed = [MeshSetting(name, size, allocation.text[:200], line, source) for name, size in degrees]
    if whole:
        there = whole.hosts * whole.gpus_per_host
        for name, size in ((CLAIMED_GPUS, whole.gpus), (CLUSTER_HOSTS, whole.hosts), (CLUSTER_GPUS, there)):
            placed.append(MeshSetting(name, size, whole.text[:200], whole.line, source))
    return MeshPlan(f"{source}#{line}{allocation.name}", engine_of(allocation), allocation.name, placed)


def _plans_of_commands(path: str, data: bytes, text: str, source: str) -> Iterator[MeshPlan]:
    for number, environment in enumerate(read_file(path, data).environments):
        if any(launch.certain for launch in environment.launches):
            plan = _plan_of_launches(environment, text, source)
            plan.id = f"{source}#{number}" if number else source
            yield plan


def _plan_of_launches(environment: FoundEnvironment, text: str, source: str) -> MeshPlan:
    """The degrees, the job size and the model sizes that the commands of one file agree on."""
    seen: dict[str, list[MeshSetting]] = {}
    spelt: Counter[str] = Counter()
    whole = model.Environment(source, "script")
    whole.batch = _layer(CommandLayer("sbatch", [option for option, _ in environment.batch]), source, 1)
    for launch in environment.launches:
        if not launch.certain:
            continue
        known = model.Launch([_layer(layer, source, launch.line) for layer in launch.layers])
        facts = facts_of(whole, known)
        for degree in facts.degrees:
            option = degree.option
            setting = MeshSetting(degree.dimension, degree.size, option.text, option.line)
            seen.setdefault(degree.dimension, []).append(setting)
            if framework := framework_of(option.name):
                spelt[framework] += 1
        for name, value in (("world_size", facts.world), ("gpus_per_host", facts.per_node)):
            starter = known.layers[0]
            if value and starter.tool != "program":
                quote = starter.evidence.quote
                seen.setdefault(name, []).append(MeshSetting(name, value, quote, starter.line))
        if facts.nodes and (dealing := dealing_option(known.layer("srun"), whole.batch)):
            dealt = MeshSetting("dealt_to_hosts", facts.nodes, dealing.text, dealing.line)
            seen.setdefault(dealt.name, []).append(dealt)
    settings = [same[0] for same in seen.values() if len({one.value for one in same}) == 1]
    framework_id = spelt.most_common(1)[0][0] if spelt else None
    if framework_id == "megatron":
        settings += megatron_model(text)
        if stages_vary_before_replicas(text):
            framework_id = "megatron-tp-pp-dp"
    return _plan(source, framework_id, settings)


def _layer(layer: CommandLayer, source: str, line: int) -> model.Layer:
    options = [model.Option(layer.tool, one.name, one.value, one.shown, source, line) for one in layer.options]
    return model.Layer(layer.tool, layer.program, options, source, line)
