"""A number that determines a job's mesh."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshSetting:
    """A number that determines the mesh: a degree, the job size, or a dimension of the model."""

    name: str
    """A dimension (`tp`, `dp_shard`), or world_size, gpus_per_host, heads, kv_heads, layers, experts, seq_len."""
    value: int
    text: str
    """The original text of the setting."""
    line: int | None = None
    """1-based."""
    source: str = ""
    """The file in which it is set."""
