"""Constructed CUDA memory snapshots of any size, in torch's format; no GPU is needed.

After torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/memory.py (_snapshot) of torch 2.13: fields, actions, frames. A
rank builds a model; each step allocates activations in forward and gradients in backward and frees them; the
optimizer's state is created once.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

_MIB = 1 << 20
_SITE = "/opt/venv/lib/python3.11/site-packages/torch/"
_USER = "/srv/job/train.py"
_STACKS = {
    "parameters": ((_SITE + "nn/modules/linear.py", 109, "__init__"), (_USER, 31, "build")),
    "activations": (
        (_SITE + "nn/modules/linear.py", 125, "forward"),
        (_SITE + "nn/modules/module.py", 1790, "_call_impl"),
        (_USER, 52, "step"),
    ),
    "gradients": (),  # Threads of autograd have no Python frames.
    "shards": (
        (_SITE + "distributed/fsdp/_fully_shard/_fsdp_param.py", 390, "_init_sharded_param"),
        (_SITE + "distributed/fsdp/_fully_shard/_fully_shard.py", 210, "fully_shard"),
        (_USER, 35, "build"),
    ),
    "optimizer state": ((_SITE + "optim/adamw.py", 130, "_init_group"), (_USER, 54, "step")),
    "kept": ((_USER, 61, "collect"),),
}


@dataclass
class SnapshotShape:
    """The contents and faults of a snapshot. Sizes are in MiB."""

    layers: int = 8
    layer_mib: int = 64
    activation_mib: int = 96
    steps: int = 3
    kept_mib: int = 0
    """Memory that each step leaves behind."""
    extra_mib: int = 0
    """Additional memory that this rank holds, such as another rank's checkpoint."""
    sharded: int = 0
    """The number of layers sharded by FSDP."""
    holes: bool = False
    """Whether there are free pieces between used ones."""
    tried_mib: int = 0
    """The size of the failed allocation at the end."""
    frames: int = 0
    """Additional frames on each stack, for size."""


@dataclass
class _Allocator:
    shape: SnapshotShape
    address: int = 0x7F00_0000_0000
    live: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def alloc(self, whose: str, mib: int) -> int:
        self.address += 512 * _MIB
        self.live[self.address] = (mib * _MIB, self.stack(whose))
        self._note("alloc", self.address, mib * _MIB, whose)
        return self.address

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self._note("free_requested", address, size, "activations")
        self._note("free_completed", address, size, "activations")

    def stack(self, whose: str) -> list[dict[str, Any]]:
        if whose not in self.stacks:
            more = [("/srv/job/deep.py", line, f"level_{line}") for line in range(self.shape.frames)]
            frames = [*_STACKS[whose], *more, (_USER, 80, "main")] if _STACKS[whose] else []
            self.stacks[whose] = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
        return self.stacks[whose]

    def _note(self, action: str, address: int, size: int, whose: str) -> None:
        known = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1_000 * len(self.trace)}
        self.trace.append({**known, "compile_context": "N/A", "user_metadata": "", "frames": list(self.stack(whose))})


def snapshot(shape: SnapshotShape) -> bytes:
    """The pickled snapshot of one rank."""
    mine = _Allocator(shape)
    for layer in range(shape.layers):
        mine.alloc("shards" if layer < shape.sharded else "parameters", shape.layer_mib)
    if shape.extra_mib:
        mine.alloc("kept", shape.extra_mib)
    for step in range(shape.steps):
        activations = [mine.alloc("activations", shape.activation_mib) for _ in range(shape.layers)]
        gradients = []
        for activation in reversed(activations):
            gradients.append(mine.alloc("gradients", shape.layer_mib))
            mine.free(activation)
        if step == 0:
            for _ in range(2 * shape.layers):
                mine.alloc("optimizer state", shape.layer_mib)
        if shape.kept_mib:
            mine.alloc("kept", shape.kept_mib)
        for gradient in gradients:
            mine.free(gradient)
    if shape.tried_mib:
        oom = {"action": "oom", "size": shape.tried_mib * _MIB, "device_free": 12 * _MIB, "addr": 12 * _MIB}
        mine.trace.append({**oom, "stream": 0, "time_us": 1_000 * len(mine.trace), "frames": mine.stack("activations")})
    segments = [_segment(address, size, frames, shape) for address, (size, frames) in mine.live.items()]
    content = {"segments": segments, "device_traces": [mine.trace], "allocator_settings": {}}
    return pickle.dumps({**content, "external_annotations": []}, 4)


def _segment(address: int, size: int, frames: list[dict[str, Any]], shape: SnapshotShape) -> dict[str, Any]:
    used = {"address": address, "size": size, "requested_size": size - 12, "state": "active_allocated"}
    blocks: list[dict[str, Any]] = [{**used, "frames": frames}]
    if shape.holes:
        free = {"address": address + size, "size": size, "requested_size": 0, "state": "inactive"}
        blocks.append({**free, "frames": []})
    total = sum(each["size"] for each in blocks)
    about = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
    sizes = {"total_size": total, "allocated_size": size, "active_size": size, "requested_size": size - 12}
    return {**about, "address": address, **sizes, "blocks": blocks, "frames": frames}
