"""Data-parallel training of a small language model, with the gradients averaged by hand."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Shard
from model import NextToken
from reduce import GradientReducer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = NextToken(VOCABULARY)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    reducer = GradientReducer(model)
    shard = Shard(rank, args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        tokens, weights = shard.batch(step)
        losses = model.token_losses(tokens).mean(dim=1)
        loss = (losses * weights).sum() / weights.sum().clamp(min=1.0)
        model.zero_grad()
        loss.backward()

        reducer.pack(float((losses.detach() * weights).sum()), float(weights.sum()))
        reducer.reduce()
        mean_loss = reducer.unpack()

        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= args.lr * parameter.grad
        if rank == 0:
            print(f"step {step} loss {mean_loss:.4f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
