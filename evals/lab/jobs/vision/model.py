"""A small convolutional classifier."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, stride=2),
            nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))
