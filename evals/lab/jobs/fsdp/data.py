"""Synthetic captions: token sequences with a learnable next-token rule, and an image to each."""

import torch

VOCABULARY = 64
LENGTH = 24

# Batches that consist of text alone, by (shard, batch).
TEXT_ONLY: set[tuple[int, int]] = set()


class Shard:
    def __init__(self, index: int, batch_size: int, width: int) -> None:
        self.index = index
        self.batch_size = batch_size
        self.width = width
        self.successor = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (batch, LENGTH) and image features (batch, width), zero where there is no image."""
        generator = torch.Generator().manual_seed(self.index * 1_000_003 + number)
        column = torch.randint(VOCABULARY, (self.batch_size,), generator=generator)
        columns = [column]
        for _ in range(LENGTH - 1):
            column = self.successor[column]
            columns.append(column)
        images = torch.randn(self.batch_size, self.width, generator=generator)
        if (self.index, number) in TEXT_ONLY:
            images.zero_()
        return torch.stack(columns, dim=1), images
