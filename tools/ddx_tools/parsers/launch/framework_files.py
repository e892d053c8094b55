"""Reads mesh settings and model sizes from the files of frameworks.

DeepSpeed 0.19 (`deepspeed/__init__.py`, `runtime/config.py`), a model's `config.json` (transformers 4 and 5), the TOML
file of a torchtitan job (0.1 to 0.2.2, config/job_config.py; 0.3 uses Python instead), Megatron-LM's arguments anywhere
in a text (core 0.16 training/arguments.py; the degrees among them are read like those of every other command line).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

from ddx_tools.model.mesh_setting import MeshSetting
from ddx_tools.parsers.launch.degree_settings import line_of, nested, settings_of, whole_number
from ddx_tools.parsers.launch.foreign_yaml import load_foreign_yaml

_MOST_CHARS = 256_000
_DEEPSPEED_MARKS = frozenset(
    ["zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "tensor_parallel", "data_parallel_size"]
)
_MODEL = {
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_hidden_layers": "layers",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
}
_PARTS = ("text_config", "llm_config", "language_config")
"""Sections where multi-part models keep the language model's numbers."""
_TORCHTITAN = {
    "data_parallel_replicate_degree": "dp_replicate",
    "data_parallel_shard_degree": "dp_shard",
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
    "expert_tensor_parallel_degree": "etp",
}
_TORCHTITAN_SECTIONS = ("parallelism", "training", "experimental")
"""Releases before 0.1 had their degrees in the last two."""
_MEGATRON = {
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "num-layers": "layers",
    "num-experts": "experts",
    "seq-length": "seq_len",
}
_OPTION = re.compile(rf"--(?P<name>{'|'.join(_MEGATRON)})[= ]+(?P<value>[0-9]{{1,9}})(?![\w.])")
_ORDER = re.compile(r"--use-tp-pp-dp-mapping(?![\w-])")


def _tree(load: Callable[[str], Any], text: str, mark: str) -> dict[str, Any]:
    try:
        tree = load(text) if mark in text and len(text) <= _MOST_CHARS else None
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def deepspeed_settings(text: str) -> list[MeshSetting]:
    """Return the parallel degrees in a DeepSpeed configuration; empty for any other file."""
    tree = _tree(json.loads, text, "{")
    if not _DEEPSPEED_MARKS & tree.keys():
        return []
    found = settings_of(tree, {"sequence_parallel_size": "sp", "data_parallel_size": "dp"}, text)
    found += settings_of(nested(tree, ["tensor_parallel"]), {"autotp_size": "tp"}, text)
    found += settings_of(nested(tree, ["zero_optimization"]), {"zero_hpz_partition_size": "hpz"}, text)
    # 0 turns tensor parallelism off: one rank has everything.
    return [one for one in found if not (one.value == 0 and one.name in ("tp", "hpz"))]


def model_settings(text: str) -> list[MeshSetting]:
    """Return heads, layers and experts from a model's `config.json`; empty for any other file."""
    tree = _tree(json.loads, text, '"num_attention_heads"')
    for section in (tree, *map(tree.get, _PARTS)):
        found = settings_of(section, _MODEL, text)
        if any(one.name == "heads" for one in found):
            return list({one.name: one for one in reversed(found)}.values())
    return []


def torchtitan_settings(text: str) -> list[MeshSetting]:
    """Return the degrees and the sequence length from a torchtitan TOML file; empty for any other file."""
    tree = _tree(tomllib.loads, text, "_parallel")
    degrees: dict[str, MeshSetting] = {}
    for section in _TORCHTITAN_SECTIONS:
        for one in settings_of(tree.get(section), _TORCHTITAN, text):
            degrees.setdefault(one.name, one)
    return [*degrees.values(), *settings_of(tree.get("training"), {"seq_len": "seq_len"}, text)] if degrees else []


def megatron_model(text: str) -> list[MeshSetting]:
    """Return the model sizes in Megatron arguments in a text; a size set to two different values is unknown."""
    found: dict[str, list[MeshSetting]] = {}
    for match in _OPTION.finditer(text):
        name = _MEGATRON[match["name"]]
        line = text.count("\n", 0, match.start()) + 1
        found.setdefault(name, []).append(MeshSetting(name, int(match["value"]), match[0], line))
    return [same[0] for same in found.values() if len({one.value for one in same}) == 1]


def stages_vary_before_replicas(text: str) -> bool:
    """Return whether Megatron numbers its ranks through pipeline stages before data-parallel replicas."""
    return bool(_ORDER.search(text))


# --- the file of `accelerate config`: processes, FSDP and parallel dimensions (accelerate 1.15,
# parallelism_config.py)
# FSDP's hybrid strategies shard inside a host and replicate between hosts (torch 2.13,
# distributed/fsdp/_init_utils.py).

_ACCELERATE = "parallelism_config_"
_ACCELERATE_DEGREES = {f"{_ACCELERATE}{name}_size": name for name in ("dp_replicate", "dp_shard", "cp", "sp", "tp")}
_HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
_NOT_SHARDED = ("NO_SHARD", "3")


def accelerate_settings(text: str) -> list[MeshSetting]:
    """Return the degrees and the number of processes from an `accelerate config` file; empty for any other file."""
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
    degrees = settings_of(tree.get("parallelism_config"), _ACCELERATE_DEGREES, text)
    return found + (degrees or _of_fsdp(tree, world, hosts, text))


def _of_fsdp(tree: dict[str, Any], world: int | None, hosts: int | None, text: str) -> list[MeshSetting]:
    """The degrees that FSDP's strategy implies, if nothing else divides the ranks."""
    if tree["distributed_type"] != "FSDP" or not world:
        return []
    key = "fsdp_sharding_strategy"
    strategy = str(nested(tree, ["fsdp_config", key]) or "FULL_SHARD").upper()[:40]
    line = line_of(text, key) or line_of(text, "distributed_type")
    said = f"{key} = {strategy}"
    if strategy in _NOT_SHARDED:
        return [MeshSetting("dp_replicate", world, said, line)]
    if strategy in _HYBRID and hosts and hosts > 0 and world % hosts == 0:
        return [MeshSetting("dp_replicate", hosts, said, line), MeshSetting("dp_shard", world // hosts, said, line)]
    return [MeshSetting("dp_shard", world, said, line)]
