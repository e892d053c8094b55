"""Features of all ranks for the loss of each: the more captions a picture is held against, the better."""

import torch
import torch.distributed as dist
from torch.nn import functional as F


def gather_features(features: torch.Tensor) -> torch.Tensor:
    """(batch, size) of each rank -> (world * batch, size), with a gradient for this rank's own part."""
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    parts[dist.get_rank()] = features
    return torch.cat(parts)


def contrastive_loss(seen: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
    """Every picture is to find its caption among those of all ranks, and the other way round."""
    all_seen, all_said = gather_features(seen), gather_features(said)
    labels = dist.get_rank() * len(seen) + torch.arange(len(seen))
    return 0.5 * (F.cross_entropy(seen @ all_said.T, labels) + F.cross_entropy(said @ all_seen.T, labels))
