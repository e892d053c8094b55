"""Fully sharded (FSDP2) training of a small captioner, with an evaluation now and then."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Shard
from model import Captioner, shard_model
from torch.nn import functional as F

WIDTH = 64
VALIDATION_BATCHES = range(1_000_000, 1_000_004)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=1_000)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def next_token_loss(model: torch.nn.Module, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1], images)
    return F.cross_entropy(logits, tokens[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: torch.nn.Module, shard: Shard) -> float:
    model.eval()
    losses = [next_token_loss(model, *shard.batch(number)) for number in VALIDATION_BATCHES]
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = shard_model(Captioner(VOCABULARY, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    shard = Shard(rank, args.batch_size, WIDTH)

    for step in range(args.steps):
        started = time.monotonic()
        tokens, images = shard.batch(step)
        optimizer.zero_grad()
        loss = next_token_loss(model, tokens, images)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

        if step > 0 and step % args.evaluate_every == 0:
            validation_loss = evaluate(model, shard)
            if rank == 0:
                print(f"validation loss {validation_loss:.4f}", flush=True)
            dist.barrier()

        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
