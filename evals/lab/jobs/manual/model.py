import torch
from torch import nn
from torch.nn import functional as F


class NextToken(nn.Module):
    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.hidden(self.embed(tokens))))

    def token_losses(self, tokens: torch.Tensor) -> torch.Tensor:
        """Next-token losses: (documents, length) -> (documents, length - 1)."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
