import torch
from game import MOVES, VIEW
from torch import nn


class Policy(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(VIEW, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, len(MOVES))

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Logits of the moves, (turns, moves)."""
        return self.head(self.layers(views))
