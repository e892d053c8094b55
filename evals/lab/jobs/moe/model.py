"""A language model whose feed-forward layers are mixtures of experts, one expert a rank of the expert group."""

import torch
import torch.distributed as dist
from exchange import Exchange, exchange_counts
from torch import nn
from torch.nn import functional as F


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(rows)))


class MixtureOfExperts(nn.Module):
    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.experts = dist.get_world_size(group)
        self.router = nn.Linear(width, self.experts)
        self.expert = Expert(width)
        self.load = torch.zeros(self.experts)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(tokens, width) -> (tokens, width): each token through the expert that the router chose."""
        gates, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sends = torch.bincount(chosen, minlength=self.experts)
        self.load = sends.float() / len(rows)
        receives = exchange_counts(sends, self.group)
        dispatched = Exchange.apply(rows[order], sends.tolist(), receives.tolist(), self.group)
        done = self.expert(dispatched)
        combined = Exchange.apply(done, receives.tolist(), sends.tolist(), self.group)
        return torch.zeros_like(rows).index_copy(0, order, combined) * gates.unsqueeze(-1)


class Block(nn.Module):
    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixture = MixtureOfExperts(width, group)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.mixture(self.norm(rows))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, group: dist.ProcessGroup, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, group) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Next-token logits, one row a token: (batch * length, vocabulary)."""
        rows = self.embed(tokens).flatten(0, 1)
        for block in self.blocks:
            rows = block(rows)
        return self.head(rows)

    def expert_parameters(self) -> list[nn.Parameter]:
        return [p for block in self.blocks for p in block.mixture.expert.parameters()]
