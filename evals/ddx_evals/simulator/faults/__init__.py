"""The faults, by kind. Each changes the programs of a draft and states the resulting truth."""

from __future__ import annotations

from ddx_evals.simulator.faults.absent import (
    frozen_completion,
    gpu_stuck,
    kernel_hang,
    rank_dead,
    rank_exited_early,
    rank_stalled,
)
from ddx_evals.simulator.faults.draft import Fault
from ddx_evals.simulator.faults.mismatch import extra_collective, skipped_collective, wrong_operation, wrong_shape
from ddx_evals.simulator.faults.order import nobody_entered, order_swapped, wrong_root, wrong_splits
from ddx_evals.simulator.faults.point_to_point import (
    both_send_first,
    missing_recv,
    missing_send,
    stage_schedule_differs,
    wrong_peer,
)
from ddx_evals.simulator.faults.quiet import silent_mispairing, straggler, wrong_dtype

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        rank_stalled,
        rank_dead,
        rank_exited_early,
        frozen_completion,
        gpu_stuck,
        kernel_hang,
        skipped_collective,
        extra_collective,
        wrong_operation,
        wrong_shape,
        wrong_dtype,
        wrong_root,
        wrong_splits,
        order_swapped,
        both_send_first,
        missing_send,
        missing_recv,
        wrong_peer,
        stage_schedule_differs,
        nobody_entered,
        silent_mispairing,
        straggler,
    )
}
