"""Synthetic pages: text, and a picture that tells the class of the text."""

import torch

TOKENS = 256
LENGTH = 24
PIXELS = 48

# Batches whose pages have no picture, by (rank, step).
TEXT_ONLY: set[tuple[int, int]] = set()

Batch = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]


class Pages:
    """The pages of one rank."""

    def __init__(self, rank: int, batch_size: int) -> None:
        self.rank = rank
        self.batch_size = batch_size

    def batch(self, step: int) -> Batch:
        """Tokens, pictures (none where the pages have none) and classes."""
        generator = torch.Generator().manual_seed(1_000_003 * self.rank + step)
        tokens = torch.randint(TOKENS, (self.batch_size, LENGTH), generator=generator)
        pictures = torch.randn(self.batch_size, PIXELS, generator=generator)
        labels = (pictures[:, 0] > 0).long() + 2 * (tokens[:, 0] % 2)
        return tokens, None if (self.rank, step) in TEXT_ONLY else pictures, labels
