"""Causal attention over a sequence that is spread over ranks: keys and values travel round the ring."""

import math

import torch
import torch.distributed as dist


class Shift(torch.autograd.Function):
    """Give a tensor to the next rank of the ring and take that of the one before."""

    @staticmethod
    def forward(ctx, tensor):
        return shift(tensor, 1)

    @staticmethod
    def backward(ctx, gradient):
        return shift(gradient, -1)


def shift(tensor: torch.Tensor, by: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor.contiguous(), (rank + by) % world),
            dist.P2POp(dist.irecv, received, (rank - by) % world),
        ]
    )
    for work in works:
        work.wait()
    return received


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(batch, heads, part, size) each -> the same: softmax over all positions up to each query's own.

    The blocks are merged by their log-sum-exp, as in flash attention.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    total, log_sum = torch.zeros_like(q), torch.full((*q.shape[:-1], 1), -torch.inf)
    pair = torch.stack([k, v])
    for hop in range(world):
        source = (rank - hop) % world
        if source <= rank:
            scores = q @ pair[0].transpose(-2, -1) / math.sqrt(q.shape[-1])
            if source == rank:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            block_log_sum = scores.logsumexp(-1, keepdim=True)
            block = scores.softmax(-1) @ pair[1]
            merged = torch.logaddexp(log_sum, block_log_sum)
            total = total * (log_sum - merged).exp() + block * (block_log_sum - merged).exp()
            log_sum = merged
        if hop < world - 1:
            pair = Shift.apply(pair)
    # Gradients travel the ring back, also through ranks that use nothing of a part.
    return total + 0.0 * pair.sum()
