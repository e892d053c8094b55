import lightning as L
import torch
from data import CLASSES, READINGS
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class RecordingClassifier(L.LightningModule):
    def __init__(self, lr: float, width: int = 64) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(READINGS, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.classify = nn.Linear(width, CLASSES)
        self.regress = nn.Linear(width, 1)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        readings, labels, targets = batch
        features = self.encoder(readings)
        loss = F.cross_entropy(self.classify(features), labels)
        loss = loss + 0.1 * F.mse_loss(self.regress(features).squeeze(1), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        readings, labels, _ = batch
        scores = self.classify(self.encoder(readings))
        self.log("accuracy", (scores.argmax(dim=1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
