"""Synthetic photographs with a learnable class, augmented in loader workers, one part of each epoch a rank."""

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 8
SIDE = 12
VALIDATION_FROM = 10_000_000


class Photographs(Dataset):
    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self.prototypes = torch.randn(CLASSES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A photograph (3, SIDE, SIDE), its class and its number in the collection."""
        number = self.first + index
        image = self.decode(number)
        return augment(image, number), torch.tensor(number % CLASSES), torch.tensor(number)

    def decode(self, number: int) -> torch.Tensor:
        noise = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(number))
        return self.prototypes[number % CLASSES] + 2.0 * noise


def augment(image: torch.Tensor, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number + 1)
    if torch.rand((), generator=generator) < 0.5:
        image = image.flip(-1)
    return image * (0.9 + 0.2 * torch.rand((), generator=generator))


def training_loader(steps: int, batch_size: int, workers: int, rank: int, world: int) -> DataLoader:
    photographs = Photographs(0, steps * batch_size * world)
    sampler = DistributedSampler(photographs, num_replicas=world, rank=rank, shuffle=True, seed=3)
    return DataLoader(
        photographs,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )


def validation_loader(batches: int, batch_size: int, rank: int) -> DataLoader:
    photographs = Photographs(VALIDATION_FROM + rank * batches * batch_size, batches * batch_size)
    return DataLoader(photographs, batch_size=batch_size)
