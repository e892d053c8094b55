"""Synthetic token sequences of several languages, each with its own next-token rule."""

import torch

VOCABULARY = 96
LENGTH = 24
LANGUAGES = 6


class Corpus:
    def __init__(self, index: int, batch_size: int) -> None:
        self.index = index
        self.batch_size = batch_size
        generator = torch.Generator().manual_seed(7)
        self.successors = torch.stack([torch.randperm(VOCABULARY, generator=generator) for _ in range(LANGUAGES)])

    def batch(self, number: int) -> torch.Tensor:
        """Tokens (batch, LENGTH)."""
        generator = torch.Generator().manual_seed(self.index * 1_000_003 + number)
        language = torch.randint(LANGUAGES, (self.batch_size,), generator=generator)
        column = torch.randint(VOCABULARY, (self.batch_size,), generator=generator)
        columns = [column]
        for _ in range(LENGTH - 1):
            column = self.successors[language, column]
            columns.append(column)
        return torch.stack(columns, dim=1)
