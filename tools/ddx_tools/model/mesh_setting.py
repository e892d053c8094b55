"""A number that something sets for the mesh of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshSetting:
    """A number that matters for the mesh: a degree, the size of the job, or a dimension of the model."""

    name: str
    """A dimension (`tp`, `dp_shard`), or world_size, gpus_per_host, heads, kv_heads, layers, experts, seq_len."""
    value: int
    text: str
    """As it stands there."""
    line: int | None = None
    """1-based."""
    source: str = ""
    """The file that it is from."""
