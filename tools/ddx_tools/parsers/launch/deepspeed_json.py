"""DeepSpeed's JSON, as far as it bears on the mesh (DeepSpeed 0.19, `deepspeed/__init__.py`, `runtime/config.py`)."""

from __future__ import annotations

import json

from ddx_tools.parsers.launch.degree_settings import MeshSetting, nested, settings_of

_MOST_CHARS = 256_000
_MARKS = frozenset(
    ["zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "tensor_parallel", "data_parallel_size"]
)


def deepspeed_settings(text: str) -> list[MeshSetting] | None:
    """The degrees of such a file, which may be none; None for any other file."""
    if len(text) > _MOST_CHARS or text.lstrip()[:1] != "{":
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or not _MARKS & tree.keys():
        return None
    top = {"sequence_parallel_size": "sp", "data_parallel_size": "dp"}
    found = settings_of(tree, top, text)
    found += settings_of(nested(tree, ["tensor_parallel"]), {"autotp_size": "tp"}, text)
    found += settings_of(nested(tree, ["zero_optimization"]), {"zero_hpz_partition_size": "hpz"}, text)
    # 0 switches tensor parallelism off; one rank has it all.
    return [one for one in found if not (one.value == 0 and one.name in ("tp", "hpz"))]
