"""A network with its optimiser and the process group over which its gradients are averaged."""

import torch
import torch.distributed as dist
from torch import nn


class Player:
    def __init__(self, network: nn.Module, lr: float) -> None:
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.5, 0.99))
        self.group = dist.new_group()
        for parameter in network.parameters():
            dist.broadcast(parameter.data, src=0, group=self.group)

    def improve(self, loss: torch.Tensor) -> float:
        """One step down the gradient of `loss`, averaged over all ranks."""
        self.optimizer.zero_grad()
        loss.backward()
        self.average_gradients()
        self.optimizer.step()
        return float(loss.detach())

    def average_gradients(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.network.parameters()])
        dist.all_reduce(flat, group=self.group)
        flat /= dist.get_world_size(self.group)
        sizes = [p.numel() for p in self.network.parameters()]
        for parameter, part in zip(self.network.parameters(), flat.split(sizes), strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    def checksum(self) -> float:
        return float(torch.stack([p.detach().double().abs().sum() for p in self.network.parameters()]).sum())
