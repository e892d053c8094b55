"""Context-parallel training of a small transformer: every rank holds a part of each sequence."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Documents
from model import Transformer
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--part", type=int, default=32, help="tokens of a sequence on one rank")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--report-every", type=int, default=10)
    parser.add_argument("--max-steps-per-second", type=float, default=4.0)
    return parser.parse_args()


def reduce_gradients(model: Transformer) -> None:
    """Every rank saw a part of the same sequences: the gradient is the mean over the parts."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part in zip(model.parameters(), flat.split(sizes), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = Transformer(VOCABULARY, world * args.part)
    documents = Documents(rank, world, args.part, args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        tokens, targets = documents.batch(step)
        model.zero_grad()
        logits = model(tokens, rank * args.part)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        own_norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        reduce_gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= args.lr * parameter.grad
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.report_every == 0:
            print(f"[rank {rank}] step {step}: own gradient norm {own_norm:.5f}, mean gradient {norm:.5f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
