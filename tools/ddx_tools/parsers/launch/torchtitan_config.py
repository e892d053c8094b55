"""The TOML file of a torchtitan job (torchtitan 0.1 to 0.2.2, config/job_config.py; 0.3 has Python in its place)."""

from __future__ import annotations

import tomllib

from ddx_tools.parsers.launch.degree_settings import MeshSetting, settings_of

_MOST_CHARS = 256_000
_DEGREES = {
    "data_parallel_replicate_degree": "dp_replicate",
    "data_parallel_shard_degree": "dp_shard",
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
    "expert_tensor_parallel_degree": "etp",
}
_OLDER_SECTIONS = ("training", "experimental")
"""Where releases before 0.1 had their degrees."""


def torchtitan_settings(text: str) -> list[MeshSetting]:
    """The degrees and the sequence length; nothing for any other file."""
    if len(text) > _MOST_CHARS or "_parallel" not in text:
        return []
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return []
    degrees: list[MeshSetting] = []
    for section in ("parallelism", *_OLDER_SECTIONS):
        known = {setting.name for setting in degrees}
        degrees += [one for one in settings_of(tree.get(section), _DEGREES, text) if one.name not in known]
    return degrees and degrees + settings_of(tree.get("training"), {"seq_len": "seq_len"}, text)
