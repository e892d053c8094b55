"""Synthetic sensor curves, most of them without a label, one shard a rank."""

import torch

POINTS = 40
KINDS = 6


class Curves:
    def __init__(self, shard: int, batch_size: int) -> None:
        self.shard = shard
        self.batch_size = batch_size
        self.shapes = torch.randn(KINDS, POINTS, generator=torch.Generator().manual_seed(7))

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Curves (batch, POINTS), their kinds (batch,) and which of these are known."""
        generator = torch.Generator().manual_seed(self.shard * 1_000_003 + number)
        kinds = torch.randint(KINDS, (self.batch_size,), generator=generator)
        noise = torch.randn(self.batch_size, POINTS, generator=generator)
        known = torch.rand(self.batch_size, generator=generator) < 0.3
        known[0] = True
        return self.shapes[kinds] + 1.5 * noise, kinds, known
