import torch
from data import KINDS, POINTS
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(POINTS, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.head = nn.Linear(width, KINDS)

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(curves))
