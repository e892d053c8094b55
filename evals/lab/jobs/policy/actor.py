"""What an actor does: play with the weights that the learner has sent, and send back what happened."""

import torch
import torch.distributed as dist
from game import MOST_TURNS, Board, Episode
from model import Policy

LEARNER = 0


class Actor:
    def __init__(self, rank: int, episodes: int) -> None:
        self.rank = rank
        self.episodes = episodes

    def play(self, policy: Policy, step: int) -> list[Episode]:
        generator = torch.Generator().manual_seed(self.rank * 1_000_003 + step)
        first = (self.rank * 10_000 + step) * self.episodes
        return [play_episode(policy, Board(first + number), generator) for number in range(self.episodes)]


@torch.no_grad()
def play_episode(policy: Policy, board: Board, generator: torch.Generator) -> Episode:
    views, moves = [], []
    reward = -0.1
    for turn in range(MOST_TURNS):
        views.append(board.view())
        chances = policy(views[-1]).softmax(-1)
        moves.append(int(torch.multinomial(chances, 1, generator=generator)))
        if board.move(moves[-1]):
            reward = 1.0 - turn / MOST_TURNS
            break
    return Episode(torch.stack(views), torch.tensor(moves), reward)


def share_weights(policy: Policy) -> None:
    """The learner's weights for everybody."""
    flat = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    dist.broadcast(flat, src=LEARNER)
    torch.nn.utils.vector_to_parameters(flat, policy.parameters())
