"""How many processes a launch starts, on how many hosts, with which GPUs, as far as its command states it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddx_tools.knowledge.launch_tools import dimension, launch_knowledge
from ddx_tools.model.launch import Environment, Launch, Layer, Option

RANK_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Tools that start the processes on a host, each with its own LOCAL_RANK."""
_LOOPBACK = re.compile(r"(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[?::1\]?)(?::\d+)?", re.I)


@dataclass(frozen=True)
class Degree:
    """A dimension of parallelism, its size, and the option that sets it."""

    dimension: str
    size: int
    option: Option


@dataclass(frozen=True)
class Facts:
    """The certain facts of a launch; None for what its command does not state."""

    nodes: int | None
    per_node: int | None
    world: int | None
    visible_gpus: int | None
    """Number of GPUs visible to each process."""
    degrees: tuple[Degree, ...]


def is_loopback(address: str) -> bool:
    """Whether an address (with or without a port) is a loopback address, which other hosts cannot reach."""
    return bool(_LOOPBACK.fullmatch(address))


def facts_of(environment: Environment, launch: Launch) -> Facts:
    """Derive the facts of one launch in its environment."""
    inner = launch.layer(*RANK_LAUNCHERS)
    srun, mpirun = launch.layer("srun"), launch.layer("mpirun")
    nodes = per_node = world = None
    if inner is not None:
        nodes, per_node, world = _of_launcher(inner)
    elif srun is not None:
        nodes = _number("nodes", srun, environment.batch)
        per_node = _number("ntasks_per_node", srun, environment.batch)
        world = _number("ntasks", srun, environment.batch) or (nodes * per_node if nodes and per_node else None)
    elif mpirun is not None:
        world = _number("ntasks", mpirun)
        per_node = _number("ntasks_per_node", mpirun)
    if environment.kind == "process" and world is None:
        world = environment.number("WORLD_SIZE")
    return Facts(nodes, per_node, world, _visible(environment), tuple(degrees_of(launch)))


def _number(name: str, *layers: Layer) -> int | None:
    """An option's numeric value from the first layer that has it."""
    for layer in layers:
        if option := layer.option(name):
            return option.number
    return None


def _of_launcher(layer: Layer) -> tuple[int | None, int | None, int | None]:
    """(nodes, processes per node, processes in total) according to a launcher's options."""
    if layer.tool == "torchrun":  # defaults: torch 2.13 distributed/run.py
        nnodes, nproc = layer.option("nnodes"), layer.option("nproc_per_node")
        nodes = 1 if layer.option("standalone") else _torchrun_nodes(nnodes)
        per_node = nproc.number if nproc else 1
        return nodes, per_node, nodes * per_node if nodes and per_node else None
    if layer.tool == "accelerate":  # num_processes is the total of all nodes; a configuration file may differ
        nodes = _number("num_machines", layer) or (None if layer.option("config_file", "num_machines") else 1)
        world = _number("num_processes", layer)
        return nodes, world // nodes if nodes and world else None, world
    gpus = _number("num_gpus", layer)
    nodes = _number("num_nodes", layer)
    return nodes, gpus, gpus * nodes if gpus and nodes else None


def _torchrun_nodes(option: Option | None) -> int | None:
    if option is None:
        return 1
    if option.value and (span := re.fullmatch(r"(\d{1,5}):(\d{1,5})", option.value)):
        return int(span[1]) if span[1] == span[2] else None
    return option.number


def _visible(environment: Environment) -> int | None:
    """How many GPUs CUDA_VISIBLE_DEVICES leaves visible; None if unknown."""
    text = environment.text("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    items = [item.strip() for item in text.split(",") if item.strip()]
    if any(not re.fullmatch(r"\d{1,3}|(?:GPU|MIG)-\S+", item, re.I) for item in items):
        return None
    return len(set(items))


def degrees_of(launch: Launch) -> list[Degree]:
    """The parallel dimensions in the started program's options; one with contradictory values is left out."""
    found: dict[str, list[Degree]] = {}
    for layer in launch.layers:
        for option in layer.options:
            name = dimension(option.name)
            if name is None or (layer.tool != "program" and not option.name.startswith("parallelism_config_")):
                continue
            sizes = int(option.value) if option.value and re.fullmatch(r"-?\d{1,6}", option.value) else None
            if sizes is not None:
                found.setdefault(name, []).append(Degree(name, sizes, option))
    return [same[0] for same in found.values() if len({degree.size for degree in same}) == 1]


@dataclass(frozen=True)
class Mismatch:
    """Parallel dimensions that do not fit the number of ranks."""

    dims: dict[str, int]
    product: int
    world: int
    whole: bool
    """All dimensions are given, so their product must equal the number of ranks; otherwise it must divide it evenly."""
    left_out: range = range(0)
    """Ranks outside such a mesh. Not certain: a dimension that the command does not name may include them."""


def size_mismatch(facts: Facts) -> Mismatch | None:
    """The mismatch between the given dimensions and the number of ranks; None if they can fit."""
    overlay = launch_knowledge().overlay
    dims = {degree.dimension: degree.size for degree in facts.degrees if degree.dimension not in overlay}
    factors = {name: size for name, size in dims.items() if size > 0}
    if not facts.world or not factors or any(size == 0 for size in dims.values()):
        return None
    product = 1
    for size in factors.values():
        product *= size
    whole = len(factors) == len(dims) and _is_whole(facts.degrees)
    if product == facts.world:
        return None
    if not whole and facts.world % product == 0:
        # If the number of replicas is also set, nothing is left to be computed from the number of ranks.
        told = "dp" in factors and len(factors) > 1 and product > 1
        return Mismatch(dims, product, facts.world, whole, range(product, facts.world)) if told else None
    return Mismatch(dims, product, facts.world, whole)


def _is_whole(degrees: tuple[Degree, ...]) -> bool:
    """Whether ddx knows all dimensions of the program, and all of them are given."""
    given = {degree.dimension for degree in degrees}
    spelt = {degree.option.name.rpartition(".")[2].replace("-", "_") for degree in degrees}
    return any(
        str(product["prefix"]) in spelt and set(product["dims"]) <= given for product in launch_knowledge().products
    )


def dealing_option(srun: Layer | None, batch: Layer) -> Option | None:
    """The `--distribution=cyclic` option, which places task 0 on the first host, task 1 on the second, … (srun(1))."""
    option = (srun.option("distribution") if srun else None) or batch.option("distribution")
    way = (option.value or "").partition(":")[0].lower() if option else ""
    return option if way in ("cyclic", "plane=1") else None
