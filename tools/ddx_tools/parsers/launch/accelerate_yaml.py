"""The file of `accelerate config`: processes, FSDP and parallel dimensions (accelerate 1.15, parallelism_config.py).

FSDP's hybrid strategies shard inside a host and replicate between hosts (torch 2.13,
distributed/fsdp/_init_utils.py).
"""

from __future__ import annotations

from typing import Any

from ddx_tools.parsers.launch.degree_settings import MeshSetting, line_of, nested, settings_of, whole_number
from ddx_tools.parsers.launch.foreign_yaml import load_foreign_yaml

_PREFIX = "parallelism_config_"
_DEGREES = {f"{_PREFIX}{name}_size": name for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp")}
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
_NOT_SHARDED = ("NO_SHARD", "3")


def accelerate_settings(text: str) -> list[MeshSetting]:
    """Degrees and number of processes of such a file; nothing for any other."""
    if "distributed_type" not in text or "num_processes" not in text:
        return []
    tree = load_foreign_yaml(text)
    if not isinstance(tree, dict) or not isinstance(tree.get("distributed_type"), str):
        return []
    found = settings_of(tree, {"num_processes": "world_size"}, text)
    world, hosts = whole_number(tree.get("num_processes")), whole_number(tree.get("num_machines"))
    if world and hosts and hosts > 0 and world % hosts == 0:
        line = line_of(text, "num_machines")
        found.append(MeshSetting("gpus_per_host", world // hosts, f"num_machines = {hosts}", line))
    degrees = settings_of(tree.get("parallelism_config"), _DEGREES, text)
    return found + (degrees or _of_fsdp(tree, world, hosts, text))


def _of_fsdp(tree: dict[str, Any], world: int | None, hosts: int | None, text: str) -> list[MeshSetting]:
    """What FSDP itself makes of the ranks, if nothing else divides them."""
    if tree["distributed_type"] != "FSDP" or not world:
        return []
    key = "fsdp_sharding_strategy"
    strategy = str(nested(tree, ["fsdp_config", key]) or "FULL_SHARD").upper()[:40]
    line = line_of(text, key) or line_of(text, "distributed_type")
    said = f"{key} = {strategy}"
    if strategy in _NOT_SHARDED:
        return [MeshSetting("dp_replicate", world, said, line)]
    if strategy in _HYBRID and hosts and hosts > 0 and world % hosts == 0:
        return [
            MeshSetting("dp_replicate", hosts, said, line),
            MeshSetting("dp_shard", world // hosts, said, line),
        ]
    return [MeshSetting("dp_shard", world, said, line)]
