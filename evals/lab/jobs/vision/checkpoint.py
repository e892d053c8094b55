"""Sharded checkpoints of model and optimizer, one directory a step, and the way back from the newest."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, out: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=out / f"step-{step}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, out: Path) -> int:
    """Load the newest checkpoint; returns the step to go on with, 0 if there is none."""
    steps = [int(path.parent.name.removeprefix("step-")) for path in out.glob("step-*/.metadata")]
    if not steps:
        return 0
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=out / f"step-{max(steps)}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return max(steps) + 1
