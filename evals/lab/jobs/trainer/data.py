"""Synthetic documents: each token follows from the two before it, but for some noise."""

import torch
from torch.utils.data import Dataset

VOCABULARY = 128
LENGTH = 32
NO_LABEL = -100

# Documents that are only context, by index: nothing of them is to be learnt.
CONTEXT_ONLY: set[int] = set()


class Documents(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed + index)
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
        kept = torch.rand(LENGTH, generator=generator) < 0.8
        for position in range(2, LENGTH):
            if kept[position]:
                tokens[position] = (tokens[position - 1] + 3 * tokens[position - 2]) % VOCABULARY
        labels = torch.full_like(tokens, NO_LABEL) if index in CONTEXT_ONLY else tokens
        return {"input_ids": tokens, "labels": labels}
