"""Points on a spiral, which the generator is to imitate; one part of them a rank."""

import math

import torch

POINT = 2
NOISE = 8


class Spiral:
    def __init__(self, index: int, batch_size: int) -> None:
        self.index = index
        self.batch_size = batch_size

    def real(self, number: int) -> torch.Tensor:
        """Points (batch, POINT)."""
        generator = torch.Generator().manual_seed(self.index * 1_000_003 + number)
        turn = 3.0 * math.pi * torch.rand(self.batch_size, generator=generator).sqrt()
        points = torch.stack([turn.cos(), turn.sin()], dim=1) * turn[:, None] / 10.0
        return points + 0.02 * torch.randn(points.shape, generator=generator)

    def noise(self, number: int) -> torch.Tensor:
        """What the generator makes points of, (batch, NOISE)."""
        generator = torch.Generator().manual_seed(self.index * 1_000_003 + number + 500_000)
        return torch.randn(self.batch_size, NOISE, generator=generator)
