"""The configuration file of `accelerate launch` (accelerate 1.10 commands/config/config_args.py)."""

from __future__ import annotations

import re

from ddx_tools.parsers.launch.foreign_yaml import load_foreign_yaml
from ddx_tools.parsers.launchers.launch_command import Layer, Option

_NAMED = re.compile(r"^distributed_type:", re.M)
_KEYS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids")
_MOST_CHARS = 64_000


def accelerate_layer(text: str) -> Layer | None:
    """The options that such a file stands for; None for any other file."""
    if not _NAMED.search(text) or "num_processes" not in text or len(text) > _MOST_CHARS:
        return None
    tree = load_foreign_yaml(text)
    if not isinstance(tree, dict):
        return None
    given = {key: str(tree[key]) for key in _KEYS if isinstance(tree.get(key), str | int)}
    return Layer("accelerate", [Option(key, value, f"{key}: {value}") for key, value in given.items()])
