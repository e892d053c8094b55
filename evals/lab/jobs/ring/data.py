"""Long synthetic sequences in which every token repeats one from far back, cut into one part a rank."""

import torch

VOCABULARY = 48
LAG = 40


class Documents:
    def __init__(self, rank: int, world: int, part: int, batch_size: int) -> None:
        self.rank = rank
        self.length = world * part
        self.part = part
        self.batch_size = batch_size

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and next tokens of this rank's part, (batch, part) each; all ranks draw the same documents."""
        generator = torch.Generator().manual_seed(number)
        start = torch.randint(VOCABULARY, (self.batch_size, LAG), generator=generator)
        document = start.repeat(1, self.length // LAG + 2)
        first = self.rank * self.part
        return document[:, first : first + self.part], document[:, first + 1 : first + self.part + 1]
