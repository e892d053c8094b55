import torch
from data import IGNORED, TAGS, VOCABULARY
from torch import nn
from torch.nn import functional as F


class Tagger(nn.Module):
    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0))


def tagging_loss(scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=IGNORED)
