"""Large dumps of realistic shape for benchmarks: consistent, but written fast, without event simulation.

An NCCL job on a dp x tp x pp mesh with 20 frames per entry (60 call paths over about 300 frames). FSDP gathers each
layer for the forward and the backward pass and scatters its gradients; tensor parallelism, with sequence parallelism,
gathers and scatters twice in each direction. Each step ends in a tensor-parallel reduce_scatter, a data-parallel
all_reduce and one of the world. Pipeline stages exchange activations as torch.distributed.pipelining does, by
`batch_isend_irecv`, so that a transfer and its closing entry `coalesced` share a sequence number. One rank stalls
before the last three; the other ranks' CPUs run ahead into them, so that three kinds of groups wait, each because of
the previous one.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

from ddx_evals.simulator.formats import torch_pickle
from ddx_evals.simulator.formats.torch_pickle import PickledFrame
from ddx_evals.simulator.training.instructions import Sizes

_START_NS = 1_795_239_921_939_717_451
_OPERATIONS_A_STEP = 96
_LAYERS = 7
_SHARD = 1_638_400
_FRAMES = 300
_STACKS = 60
_DEPTH = 20
_POLL_NS = 100_000_000
_HUNG_NS = 600_000_000_000


@dataclass(frozen=True)
class MeshSizes:
    """The sizes of the mesh; their product is the world size. A tensor-parallel group is `tp` consecutive ranks."""

    dp: int
    tp: int
    pp: int

    @classmethod
    def of(cls, ranks: int, stages: int) -> MeshSizes:
        """A mesh with tensor and pipeline groups of at most 8 and `stages` (1, 2 or 4) ranks."""
        tp = max(size for size in (1, 2, 4, 8) if ranks % size == 0)
        pp = max(size for size in (1, 2, 4) if size <= stages and (ranks // tp) % size == 0)
        return cls(ranks // tp // pp, tp, pp)

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Indices in (pp, dp, tp): pipeline outermost, tensor innermost."""
        stage, rest = divmod(rank, self.dp * self.tp)
        return (stage, *divmod(rest, self.tp))

    def groups(self, rank: int) -> list[tuple[str, str, list[int]]]:
        """(name, description, global ranks) of a rank's groups: world, dp, tp, pp; names as torch counts them."""
        stage, replica, shard = self.coordinates(rank)
        plane = self.dp * self.tp
        tp_first = 1 + self.pp * self.tp
        pp_first = tp_first + self.pp * self.dp
        return [
            ("0", "default_pg", list(range(plane * self.pp))),
            (
                str(1 + stage * self.tp + shard),
                "mesh_dp",
                [stage * plane + i * self.tp + shard for i in range(self.dp)],
            ),
            (
                str(tp_first + stage * self.dp + replica),
                "mesh_tp",
                [stage * plane + replica * self.tp + i for i in range(self.tp)],
            ),
            (
                str(pp_first + replica * self.tp + shard),
                "mesh_pp",
                [i * plane + replica * self.tp + shard for i in range(self.pp)],
            ),
        ]


_WORLD, _DP, _TP, _PP = range(4)


@dataclass(frozen=True)
class _Operation:
    group: int
    name: str
    stack: int
    sizes: tuple[Sizes, Sizes]
    is_p2p: bool = False
    closes: bool = False
    """The closing entry of a batch: it is numbered with the transfers before it."""


def write_benchmark(directory: Path, ranks: int, entries: int, processes: int = 2, stages: int = 4) -> int:
    """Write the dumps `nccl_trace_rank_<rank>` of `ranks` ranks with `entries` entries each; return the stalled rank.

    Pipelines have at most `stages` stages; with 1, the mesh is dp x tp without transfers. The same arguments give the
    same bytes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write = partial(_write, directory, MeshSizes.of(ranks, stages), entries)
    if processes == 1:
        for rank in range(ranks):
            write(rank)
    else:
        with ProcessPoolExecutor(processes) as pool:
            for _ in pool.map(write, range(ranks), chunksize=8):
                pass
    return _stalled(ranks)


def _write(directory: Path, shape: MeshSizes, entries: int, rank: int) -> None:
    (directory / f"nccl_trace_rank_{rank}").write_bytes(torch_pickle.encode(_dump(shape, entries, rank)))


def _stalled(ranks: int) -> int:
    return ranks * 5 // 8


@cache
def _stacks() -> list[list[PickledFrame]]:
    chosen = random.Random(1)
    frames = [
        PickledFrame(
            name=f"{('forward', 'step', 'reduce', 'gather', '_call_impl')[i % 5]}_{i}",
            filename=f"/srv/train/package_{i % 17}/module_{i % 41}.py",
            line=i * 7 % 900 + 1,
        )
        for i in range(_FRAMES)
    ]
    return [[frames[chosen.randrange(_FRAMES)] for _ in range(_DEPTH)] for _ in range(_STACKS)]


@cache
def _step(stage: int, stages: int, dp: int) -> list[_Operation]:
    """One step of a rank in a pipeline stage: receives, layers, sends, gradients, loss."""
    whole: Sizes = [[4096, 5120]]
    part: Sizes = [[512, 5120]]
    grads: Sizes = [[52_428_800]]
    one: Sizes = [[1]]
    shard: Sizes = [[_SHARD]]
    unsharded: Sizes = [[_SHARD * dp]]
    gather, scatter = (_TP, "_all_gather_base", (part, whole)), (_TP, "_reduce_scatter_base", (whole, part))
    unshard, reshard = (_DP, "_all_gather_base", (shard, unsharded)), (_DP, "_reduce_scatter_base", (unsharded, shard))
    layer = [*[unshard, gather, scatter, gather, scatter] * 2, reshard]
    outside = [*[unshard, unshard, reshard] * 2, reshard]
    layers = [_Operation(group, name, i % 40, sizes) for i, (group, name, sizes) in enumerate(layer * _LAYERS)]
    layers += [_Operation(group, name, 40 + i, sizes) for i, (group, name, sizes) in enumerate(outside)]
    moved = (whole, whole)
    sends = _batch(f"send {stage}->{stage + 1}", 50, moved) if stage + 1 < stages else []
    receives = _batch(f"recv {stage}<-{stage - 1}", 51, moved) if stage else []
    end = [
        _Operation(_TP, "_reduce_scatter_base", 57, (whole, part)),
        _Operation(_DP, "all_reduce", 58, (grads, grads)),
        _Operation(_WORLD, "all_reduce", 59, (one, one)),
    ]
    return [*receives, *layers, *sends, *end]


def _batch(transfer: str, stack: int, moved: tuple[Sizes, Sizes]) -> list[_Operation]:
    return [
        _Operation(_PP, transfer, stack, moved, is_p2p=True),
        _Operation(_PP, "coalesced", stack, ([], []), closes=True),
    ]


@cache
def _clock(operations: int) -> list[int]:
    gaps = random.Random(2)
    return list(accumulate((gaps.randrange(200_000, 6_000_000) for _ in range(operations)), initial=_START_NS))


def _dump(shape: MeshSizes, entries: int, rank: int) -> dict[str, object]:
    stage, *_ = shape.coordinates(rank)
    step = _step(stage, shape.pp, shape.dp)
    steps = entries // (_OPERATIONS_A_STEP - 10) + 2
    total = steps * len(step)
    stalled = _stalled(shape.dp * shape.tp * shape.pp)
    done = total - 3 + _finished_of_last_three(shape, rank, stalled)
    if rank == stalled:
        total = done = total - 3
    groups = shape.groups(rank)
    jitter = random.Random(rank)
    clock = _clock(steps * (_OPERATIONS_A_STEP + 4))
    offset = jitter.randrange(50_000_000)
    collective, p2p, entered, completed = [0] * 4, [0] * 4, [-1] * 4, [-1] * 4
    names = [(name, description) for name, description, _ in groups]
    rows: list[dict[str, object]] = []
    for index in range(total):
        operation = step[index % len(step)]
        group = operation.group
        if not operation.closes:
            counters = p2p if operation.is_p2p else collective
            counters[group] += 1
            entered[group] = counters[group]
            if index < done:
                completed[group] = counters[group]
        if index < total - entries:
            continue
        # Steps begin at the same time on every rank, whatever a pipeline stage leaves out in between.
        at = clock[index // len(step) * (_OPERATIONS_A_STEP + 4) + index % len(step)] + offset + jitter.getrandbits(20)
        seen = index < done and not operation.is_p2p
        noticed = at + _POLL_NS if seen else None
        state = "completed" if seen else "started" if index == done else "scheduled"
        numbers = collective[group], p2p[group]
        rows.append(_entry(operation, index, names[group], numbers, (at, noticed), state, retired=seen))
    waiting = step[done % len(step)].group if done < total else None
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, desc, ranks in groups},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            str(group): {
                "last_enqueued_collective": entered[group],
                "last_started_collective": entered[group] if group == waiting else completed[group],
                "last_completed_collective": completed[group],
            }
            for group in range(4)
            if entered[group] != -1
        },
        "entries": rows,
    }


def _entry(
    operation: _Operation,
    index: int,
    group: tuple[str, str],
    numbers: tuple[int, int],
    times_ns: tuple[int, int | None],
    state: str,
    *,
    retired: bool,
) -> dict[str, object]:
    """One entry of the ring. `numbers` count collectives and transfers; `times_ns`: created, noticed as completed."""
    collective, p2p = numbers
    created_ns, noticed_ns = times_ns
    dtypes: list[object] = [] if operation.closes else ["BFloat16"]
    return {
        "frames": _stacks()[operation.stack],
        "record_id": index,
        "pg_id": operation.group,
        "process_group": group,
        "thread_name": "pt_main_thread",
        "thread_id": "139987704658816",
        "collective_seq_id": collective,
        "p2p_seq_id": p2p,
        "op_id": collective + p2p,
        "profiling_name": "nccl:" + operation.name,
        "time_created_ns": created_ns,
        "input_sizes": operation.sizes[0],
        "input_dtypes": dtypes,
        "output_sizes": operation.sizes[1],
        "output_dtypes": dtypes,
        "state": state,
        "time_discovered_started_ns": created_ns + _HUNG_NS if state == "started" else noticed_ns,
        "time_discovered_completed_ns": noticed_ns,
        "retired": retired,
        "timeout_ms": 600_000,
        "is_p2p": operation.is_p2p,
    }


def _finished_of_last_three(shape: MeshSizes, rank: int, stalled: int) -> int:
    """The number of the last three collectives (tp, dp, world) that a rank completes while `stalled` stays away."""
    stage, replica, _ = shape.coordinates(rank)
    its_stage, its_replica, _ = shape.coordinates(stalled)
    if stage != its_stage:
        return 2
    return 0 if replica == its_replica else 1
