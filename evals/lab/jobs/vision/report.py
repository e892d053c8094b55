"""What every rank prints of itself now and then: its own loss, its gradients and weights, its samples."""

import torch
from torch import nn


def gradient_norm(model: nn.Module) -> float:
    return float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())


def weight_checksum(model: nn.Module) -> float:
    return float(sum(p.detach().double().abs().sum() for p in model.parameters()))


def report(rank: int, step: int, loss: float, model: nn.Module, numbers: torch.Tensor) -> None:
    print(
        f"[rank {rank}] step {step}: own loss {loss:.4f}, gradient norm {gradient_norm(model):.5f}, "
        f"weights {weight_checksum(model):.5f}, samples {numbers[:4].tolist()}",
        flush=True,
    )
