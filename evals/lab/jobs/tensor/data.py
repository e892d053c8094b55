"""Synthetic token sequences with a learnable next-token rule; all ranks of a tensor-parallel group read the same."""

import torch

VOCABULARY = 64
LENGTH = 24


class Corpus:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.successor = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))

    def batch(self, number: int) -> torch.Tensor:
        """Tokens (batch, LENGTH)."""
        generator = torch.Generator().manual_seed(number)
        columns = [torch.randint(VOCABULARY, (self.batch_size,), generator=generator)]
        for _ in range(LENGTH - 1):
            columns.append(self.successor[columns[-1]])
        return torch.stack(columns, dim=1)
