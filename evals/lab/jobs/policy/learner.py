"""What the learner does: improve the policy by what the actors have played."""

import torch
import torch.distributed as dist
from actor import LEARNER
from game import Episode
from model import Policy
from torch.nn import functional as F


def collect(episodes: list[Episode]) -> list[Episode]:
    """Episodes of all actors, on the learner; nothing elsewhere."""
    learns = dist.get_rank() == LEARNER
    gathered: list[list[Episode]] | None = [[] for _ in range(dist.get_world_size())] if learns else None
    dist.gather_object(episodes, gathered, dst=LEARNER)
    return [episode for played in gathered or [] for episode in played]


def improve(policy: Policy, optimizer: torch.optim.Optimizer, episodes: list[Episode]) -> float:
    """A step of the policy gradient, with the mean reward as the baseline."""
    rewards = torch.tensor([episode.reward for episode in episodes])
    advantages = rewards - rewards.mean()
    losses = [
        advantage * F.cross_entropy(policy(episode.views), episode.moves, reduction="sum")
        for advantage, episode in zip(advantages, episodes, strict=True)
    ]
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())
