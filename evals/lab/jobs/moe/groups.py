"""The process groups of expert parallelism: who exchanges tokens, and who holds copies of the same expert."""

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Groups:
    expert: dist.ProcessGroup
    """Ranks whose experts make one layer."""
    copies: dist.ProcessGroup
    """Ranks with the same expert."""


def make_groups(expert_parallel: int) -> Groups:
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [list(range(first, first + expert_parallel)) for first in range(0, world, expert_parallel)]
    copies = [list(range(first, world, expert_parallel)) for first in range(expert_parallel)]
    expert_groups = [dist.new_group(ranks) for ranks in layers]
    copy_groups = [dist.new_group(ranks) for ranks in copies]
    return Groups(expert_groups[rank // expert_parallel], copy_groups[rank % expert_parallel])
