import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, pixels: int, classes: int, width: int = 256) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(images))
