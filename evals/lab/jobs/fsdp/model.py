"""A small captioner: residual blocks over tokens, with the image added by a tower of the same kind."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Captioner(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.vision = Block(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Next-token logits, one row a token: (batch * length, vocabulary)."""
        x = self.embed(tokens)
        x = x + self.vision(images).unsqueeze(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))


def shard_model(model: Captioner) -> Captioner:
    """Shard every block on its own and the rest with the root."""
    for block in (model.vision, *model.blocks):
        fully_shard(block)
    return fully_shard(model)
