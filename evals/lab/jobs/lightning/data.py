"""Synthetic sensor readings with a label, and for some of them a second, auxiliary target."""

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

READINGS = 32
CLASSES = 6
NO_TARGET = float("nan")

# Recordings of the validation set whose sensor was replaced halfway, by index.
RECALIBRATED: set[int] = set()

# Recordings without the auxiliary target, by index.
WITHOUT_TARGET: set[int] = set()


class Recordings(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed
        self.rule = torch.randn(READINGS, CLASSES, generator=torch.Generator().manual_seed(4))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        readings = torch.randn(READINGS, generator=torch.Generator().manual_seed(self.seed + index))
        target = torch.tensor(NO_TARGET) if index in WITHOUT_TARGET else readings.square().mean()
        return readings, (readings @ self.rule).argmax(), target


class RecordingsModule(L.LightningDataModule):
    def __init__(self, batch_size: int, count: int = 100_000) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.count = count

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Recordings(self.count, seed=0), batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Recordings(256, seed=50_000_000), batch_size=self.batch_size)
