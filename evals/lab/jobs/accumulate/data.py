"""Synthetic token sequences with a learnable next-token rule, one shard a rank."""

import torch

VOCABULARY = 64
LENGTH = 24


class Shard:
    def __init__(self, index: int, batch_size: int) -> None:
        self.index = index
        self.batch_size = batch_size
        self.successor = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))

    def microbatch(self, step: int, number: int) -> torch.Tensor:
        """Tokens (batch, LENGTH)."""
        generator = torch.Generator().manual_seed((self.index * 1_000_003 + step) * 64 + number)
        columns = [torch.randint(VOCABULARY, (self.batch_size,), generator=generator)]
        for _ in range(LENGTH - 1):
            columns.append(self.successor[columns[-1]])
        return torch.stack(columns, dim=1)
