"""Rows exchanged between the ranks of an expert-parallel group, with a gradient."""

import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    """all_to_all_single of rows (sum of `sends`, width) -> (sum of `receives`, width)."""

    @staticmethod
    def forward(ctx, rows, sends, receives, group):
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        return all_to_all(rows, sends, receives, group)

    @staticmethod
    def backward(ctx, gradient):
        return all_to_all(gradient, ctx.receives, ctx.sends, ctx.group), None, None, None


def all_to_all(rows: torch.Tensor, sends: list[int], receives: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    received = rows.new_empty(sum(receives), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receives, sends, group=group)
    return received


def exchange_counts(sends: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """How many rows each rank of the group will send here, given how many go to each."""
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends, group=group)
    return receives
