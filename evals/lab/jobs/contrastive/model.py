"""Two towers that bring a picture and its caption to the same place."""

import torch
from data import PIXELS, WORDS
from torch import nn
from torch.nn import functional as F


class TwoTowers(nn.Module):
    def __init__(self, width: int = 64, features: int = 32) -> None:
        super().__init__()
        self.pictures = nn.Sequential(nn.Linear(PIXELS, width), nn.GELU(), nn.Linear(width, features))
        self.words = nn.EmbeddingBag(WORDS, width, padding_idx=0)
        self.captions = nn.Sequential(nn.GELU(), nn.Linear(width, features))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures: torch.Tensor, captions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit vectors of pictures and captions, (batch, features) each; those of pictures are scaled."""
        seen = F.normalize(self.pictures(pictures), dim=-1)
        said = F.normalize(self.captions(self.words(captions)), dim=-1)
        return seen * self.log_scale.exp(), said
