"""Pipeline-parallel training of a residual network: one stage a rank, 1F1B schedule."""

import argparse
import time

import torch
import torch.distributed as dist
from model import Stage
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

WIDTH = 64


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--microbatch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def batch(number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets (size, WIDTH): the targets are a fixed rotation of the inputs."""
    inputs = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(number))
    return inputs, inputs.roll(1, dims=1)


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)
    module = Stage(WIDTH)
    optimizer = torch.optim.SGD(module.parameters(), lr=args.lr, momentum=0.9)
    stage = PipelineStage(module, stage_index=rank, num_stages=world, device=torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=args.microbatches, loss_fn=F.mse_loss)

    for step in range(args.steps):
        started = time.monotonic()
        inputs, targets = batch(step, args.microbatches * args.microbatch_size)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
