"""Synthetic pictures with captions that describe them, one shard a rank."""

import torch
from torch.utils.data import Dataset

PIXELS = 48
WORDS = 64
LENGTH = 8
THEMES = 16

Pair = tuple[torch.Tensor, torch.Tensor]


class Pairs(Dataset[Pair]):
    def __init__(self, shard: int, count: int) -> None:
        self.shard = shard
        self.count = count
        generator = torch.Generator().manual_seed(7)
        self.looks = torch.randn(THEMES, PIXELS, generator=generator)
        self.vocabulary = torch.randint(1, WORDS, (THEMES, LENGTH), generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        """A picture (PIXELS,) and the words of its caption (LENGTH,), 0 for none."""
        generator = torch.Generator().manual_seed(self.shard * 1_000_003 + index)
        theme = int(torch.randint(THEMES, (), generator=generator))
        picture = self.looks[theme] + 0.7 * torch.randn(PIXELS, generator=generator)
        spoken = torch.rand(LENGTH, generator=generator) < 0.8
        return picture, self.caption(index, torch.where(spoken, self.vocabulary[theme], 0))

    def caption(self, index: int, words: torch.Tensor) -> torch.Tensor:
        return words
