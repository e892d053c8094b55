"""Constructed profiler traces of a data-parallel step on GPUs, in Kineto's format, of any size; no GPU is needed.

After libkineto/src/output_json.cpp and CuptiActivity.cpp (pytorch/kineto, 2026): their fields, order and white space.
A step takes its batch, computes forward and backward on stream 7, reduces one bucket for each layer on stream 20, and
ends with the optimizer. All ranks leave an all_reduce together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

_COMPUTE, _NCCL = 7, 20
_KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_bias_f16_execute_kernel__5x_cublas",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >",
    "triton_poi_fused_add_native_layer_norm_3",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, 3ul>",
)
_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class TraceShape:
    """The contents and faults of a trace. Times are in µs."""

    ranks: int = 2
    steps: int = 3
    layers: int = 8
    kernels: int = 16
    """Kernels per layer in forward, and as many in backward."""
    kernel_us: float = 40.0
    transfer_us: float = 300.0
    """Time to reduce a bucket once all ranks are in it."""
    bucket_elements: int = 13_107_200
    overlaps: bool = True
    """Whether a bucket is reduced as soon as its gradients are ready; otherwise all are reduced after backward."""
    data_us: float = 50.0
    """Time that a step waits for its batch."""
    host_us: float = 0.0
    """Time per step that the host is busy with other work while the GPU is idle."""
    late_rank: int | None = None
    late_us: float = 0.0
    """Extra time that the late rank waits for its batch."""
    clock_us: float = 0.0
    """How far each rank's clock is ahead of the previous rank's."""


def trace(shape: TraceShape, rank: int) -> Iterator[bytes]:
    """The trace of one rank, in pieces."""
    yield _head(shape, rank).encode()
    yield from _Rank(shape, rank).events()
    yield f'\n  ],\n  "traceName": "rank{rank}.json"\n}}'.encode()


def _head(shape: TraceShape, rank: int) -> str:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": shape.ranks}
    about = {
        "backend": "nccl",
        "rank": rank,
        "world_size": shape.ranks,
        "pg_count": 1,
        "pg_config": [{**group, "ranks": list(range(shape.ranks))}],
        "nccl_version": "2.27.5",
    }
    device = '{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85024112640, "computeMajor": 9}'
    return (
        f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {device}\n    ],\n'
        f'      "distributedInfo": {json.dumps(about)},\n      "host_name": "node-{rank // 8}",\n'
        '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": ['
    )


class _Rank:
    def __init__(self, shape: TraceShape, rank: int) -> None:
        self._shape = shape
        self._rank = rank
        self._late_us = shape.late_us if rank == shape.late_rank else 0.0
        self._number = 0

    def events(self) -> Iterator[bytes]:
        at = 1_000_000.0 + self._rank * self._shape.clock_us
        for step in range(self._shape.steps):
            lines: list[str] = []
            at = self._step(step, at, lines)
            yield "".join(lines).encode()
        where = f'"pid": "", "tid": "", "ts": {at:.3f}'
        yield f'\n  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n    {where}\n  }}'.encode()

    def _step(self, step: int, began: float, lines: list[str]) -> float:
        shape = self._shape
        data_us = shape.data_us + self._late_us
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        lines.append(_event("user_annotation", loader, 4242, 4242, began, data_us, '"External id": 1'))
        at = began + data_us + shape.host_us
        others_late_us = max(0.0, shape.late_us - self._late_us) if shape.late_rank is not None else 0.0
        for _ in range(shape.layers):
            at = self._layer(at, lines)
        free, buckets = at, []
        for _ in range(shape.layers):
            at = self._layer(at, lines)
            buckets.append(at)
        for ready in buckets:
            start = max(free, ready if shape.overlaps else at)
            free = max(start, ready + others_late_us if shape.overlaps else at + others_late_us) + shape.transfer_us
            self._reduce(start, free - start, lines)
        end = self._layer(max(at, free) + 5, lines)
        lines.append(_event("cuda_runtime", "cudaDeviceSynchronize", 4242, 4242, at, end - at, '"cbid": 165'))
        name = f"ProfilerStep#{step}"
        lines.append(_event("user_annotation", name, 4242, 4242, began, end - began + 2, '"External id": 2'))
        return end + 3

    def _layer(self, at: float, lines: list[str]) -> float:
        for place in range(self._shape.kernels):
            self._kernel(_KERNELS[place % len(_KERNELS)], at, self._shape.kernel_us, _COMPUTE, "", lines)
            at += self._shape.kernel_us
        return at

    def _reduce(self, at: float, us: float, lines: list[str]) -> None:
        count = self._shape.bucket_elements
        members = ", ".join(map(str, range(self._shape.ranks)))
        about = (
            f', "Collective name": "allreduce", "In msg nelems": {count}, "Out msg nelems": {count}, "Group size": '
            f'{self._shape.ranks}, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": '
            f'"default_pg", "Process Group Ranks": "[{members}]"'
        )
        self._kernel(_REDUCE, at, us, _NCCL, about, lines)

    def _kernel(self, name: str, at: float, us: float, stream: int, more: str, lines: list[str]) -> None:
        """A kernel, the call that launched it, the operation that made the call, and the arrows between them."""
        self._number += 1
        number = self._number
        launch = at - 15
        op = f'"External id": {number}, "Record function id": 0, "Ev Idx": {number}'
        lines.append(_event("cpu_op", "aten::mm", 4242, 4242, launch - 4, 12, op))
        call = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        lines.append(_event("cuda_runtime", "cudaLaunchKernel", 4242, 4242, launch, 6, call))
        lines.append(_arrow("s", number, 4242, 4242, launch))
        about = (
            f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": '
            f'{number}, "registers per thread": 168, "shared memory": 213252, "blocks per SM": 1.0, "warps per SM": '
            f'12.0, "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19{more}'
        )
        lines.append(_event("kernel", name, 0, stream, at, us, about))
        lines.append(_arrow("f", number, 0, stream, at))


def _event(category: str, name: str, pid: int, tid: int, at: float, us: float, args: str) -> str:
    times = f'"ts": {at:.3f}, "dur": {us:.3f}'
    return (
        f'\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n    {times},\n'
        f'    "args": {{\n      {args}\n    }}\n  }},'
    )


def _arrow(phase: str, number: int, pid: int, tid: int, at: float) -> str:
    bound = ', "bp": "e"' if phase == "f" else ""
    where = f'"id": {number}, "pid": {pid}, "tid": {tid}, "ts": {at:.3f}'
    return f'\n  {{\n    "ph": "{phase}", {where},\n    "cat": "ac2g", "name": "ac2g"{bound}\n  }},'
