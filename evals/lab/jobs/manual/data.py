"""Synthetic documents with a learnable next-token rule, cut into one shard a rank."""

import torch

VOCABULARY = 64
LENGTH = 32

# Documents that the length filter drops, by (shard, batch): they come out as padding.
FILTERED: dict[tuple[int, int], int] = {}


class Shard:
    def __init__(self, index: int, batch_size: int) -> None:
        self.index = index
        self.batch_size = batch_size
        self.successor = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (documents, LENGTH) and the weight of each document: 0 for padding."""
        generator = torch.Generator().manual_seed(self.index * 1_000_003 + number)
        column = torch.randint(VOCABULARY, (self.batch_size,), generator=generator)
        columns = [column]
        for _ in range(LENGTH - 1):
            noise = torch.rand(self.batch_size, generator=generator) < 0.1
            random = torch.randint(VOCABULARY, (self.batch_size,), generator=generator)
            column = torch.where(noise, random, self.successor[column])
            columns.append(column)
        weights = torch.ones(self.batch_size)
        weights[: FILTERED.get((self.index, number), 0)] = 0.0
        return torch.stack(columns, dim=1), weights
