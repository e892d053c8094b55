"""A small game: walk to the treasure on a board before the time is up."""

from dataclasses import dataclass

import torch

SIDE = 5
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
VIEW = 4
MOST_TURNS = 24


@dataclass
class Episode:
    views: torch.Tensor
    """(turns, VIEW)"""
    moves: torch.Tensor
    """(turns,)"""
    reward: float


class Board:
    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.walker, self.treasure = torch.randint(SIDE, (2, 2), generator=generator).tolist()

    def view(self) -> torch.Tensor:
        return torch.tensor([*self.walker, *self.treasure], dtype=torch.float32) / (SIDE - 1) - 0.5

    def move(self, number: int) -> bool:
        """Walk one field, not over the edge; whether the treasure is there."""
        steps = zip(self.walker, MOVES[number], strict=True)
        self.walker = [min(max(position + by, 0), SIDE - 1) for position, by in steps]
        return self.walker == self.treasure
