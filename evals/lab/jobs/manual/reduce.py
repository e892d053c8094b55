"""Gradient averaging: one flat buffer, reduced in buckets of equal size."""

import torch
import torch.distributed as dist
from torch import nn

BUCKET = 8192


class GradientReducer:
    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.count = sum(p.numel() for p in self.parameters)
        # The last two elements carry the loss and its weight, so that they need no collective of their own.
        buckets = -(-(self.count + 2) // BUCKET)
        self.flat = torch.zeros(buckets * BUCKET)

    def pack(self, loss: float, weight: float) -> None:
        torch.cat([p.grad.flatten() for p in self.parameters], out=self.flat[: self.count])
        self.flat[-2], self.flat[-1] = loss, weight

    def reduce(self) -> None:
        for bucket in self.flat.split(BUCKET):
            dist.all_reduce(bucket)
        self.flat[: self.count] /= dist.get_world_size()

    def unpack(self) -> float:
        """Write the averaged gradients back; returns the mean loss over all documents."""
        offset = 0
        for p in self.parameters:
            p.grad.copy_(self.flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        return float(self.flat[-2] / self.flat[-1].clamp(min=1.0))
