"""Synthetic sentences for token tagging, cut into shards that are encoded once and kept on disk."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

VOCABULARY = 512
TAGS = 5
IGNORED = -100

# Sentences of the validation set with more tokens than the rest, by index.
LONG_SENTENCES: dict[int, int] = {}

# Sentences that annotators left without any tag, by position in the training set.
UNTAGGED: set[int] = set()

Sentence = tuple[torch.Tensor, torch.Tensor]


class Sentences(Dataset[Sentence]):
    def __init__(self, tokens: torch.Tensor, lengths: dict[int, int], untagged: set[int]) -> None:
        self.tokens = tokens
        self.lengths = lengths
        self.untagged = untagged

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Sentence:
        tokens = self.tokens[index, : self.lengths.get(index, 9 + index % 7)]
        if index in self.untagged:
            return tokens, torch.full_like(tokens, IGNORED)
        return tokens, (tokens + tokens.roll(1)) % TAGS


def encode(seed: int, count: int, longest: int = 48) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (count, longest), generator=torch.Generator().manual_seed(seed))


def load(name: str, seed: int, count: int, cache: Path) -> torch.Tensor:
    """The encoded sentences of a set: from the cache, or encoded and put there."""
    path = cache / f"{name}.pt"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(encode(seed, count), path)
    return torch.load(path)


def load_sets(cache: Path) -> tuple[Sentences, Sentences]:
    """Training and validation set."""
    training = Sentences(load("training", 1, 20_000, cache), {}, UNTAGGED)
    validation = Sentences(load("validation", 2, 256, cache), LONG_SENTENCES, set())
    return training, validation


def collate(sentences: list[Sentence], multiple: int = 16) -> dict[str, torch.Tensor]:
    """Pad to the longest sentence of the batch, rounded up so that few shapes occur."""
    longest = max(len(tokens) for tokens, _ in sentences)
    width = -(-longest // multiple) * multiple
    batch = {
        "tokens": torch.zeros(len(sentences), width, dtype=torch.long),
        "tags": torch.full((len(sentences), width), IGNORED),
    }
    for row, (tokens, tags) in enumerate(sentences):
        batch["tokens"][row, : len(tokens)] = tokens
        batch["tags"][row, : len(tags)] = tags
    return batch
