"""Synthetic images whose class is a linear rule of their pixels, one shard a rank."""

import torch
from torch.utils.data import Dataset

CLASSES = 10
PIXELS = 8 * 8

# Batches without a usable label, by (shard, batch).
UNLABELLED: set[tuple[int, int]] = set()


class Shard(Dataset):
    def __init__(self, index: int, batches: int, batch_size: int) -> None:
        self.index = index
        self.batches = batches
        self.batch_size = batch_size
        self.rule = torch.randn(PIXELS, CLASSES, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.read(position)
        if (self.index, position // self.batch_size) in UNLABELLED:
            return image, torch.tensor(-100)
        return image, (image @ self.rule).argmax()

    def read(self, position: int) -> torch.Tensor:
        seed = self.index * 1_000_003 + position
        return torch.randn(PIXELS, generator=torch.Generator().manual_seed(seed))
