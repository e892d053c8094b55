"""Fully sharded (FSDP2) training with gradients accumulated over several microbatches a step."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from data import VOCABULARY, Shard
from export import export
from model import build
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--export-every", type=int, default=1_000)
    parser.add_argument("--max-steps-per-second", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def accumulate(model: FSDPModule, shard: Shard, step: int, microbatches: int) -> float:
    """Forward and backward of all microbatches of a step; gradients are reduced with the last one."""
    total = 0.0
    for number in range(microbatches):
        last = number == microbatches - 1
        model.set_requires_gradient_sync(last)
        tokens = shard.microbatch(step, number)
        loss = F.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten()) / microbatches
        loss.backward()
        total += float(loss.detach())
    return total


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    args.out.mkdir(exist_ok=True)

    torch.manual_seed(0)
    model = build(VOCABULARY, compiled=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr / 10)
    shard = Shard(rank, args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        optimizer.zero_grad()
        loss = accumulate(model, shard, step, args.microbatches)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm).full_tensor()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
            if step % 10 == 0:
                print(f"gradient norm {norm:.4f}", flush=True)
        if step > 0 and step % args.export_every == 0:
            export(model, args.out / f"weights-{step}.pt", rank)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
