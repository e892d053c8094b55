import torch
from data import PIXELS, TOKENS
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    """Turns a picture into a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(PIXELS, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.layers(pictures)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.mlp(hidden)


class PageClassifier(nn.Module):
    def __init__(self, width: int = 64, blocks: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.tower = Tower(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor, pictures: torch.Tensor | None, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        if pictures is None:
            pictures = hidden.new_zeros(len(tokens), PIXELS)
        hidden = hidden + self.tower(pictures)[:, None]
        for block in self.blocks:
            hidden = block(hidden)
        return F.cross_entropy(self.head(hidden.mean(dim=1)), labels)
