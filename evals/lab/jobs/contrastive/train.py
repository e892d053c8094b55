"""Contrastive training of two towers: DistributedDataParallel, and features gathered over all ranks for the loss."""

import argparse
import time

import torch
import torch.distributed as dist
from data import Pairs
from gather import contrastive_loss
from model import TwoTowers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


@torch.no_grad()
def evaluate(model: TwoTowers, rank: int, batch_size: int, batches: int = 4) -> float:
    """Share of held-out pictures of all ranks whose caption is the nearest of its batch."""
    held_out = Pairs(10_000 + rank, batches * batch_size)
    counts = torch.zeros(2)
    for pictures, captions in DataLoader(held_out, batch_size=batch_size):
        seen, said = model(pictures, captions)
        found = (seen @ said.T).argmax(dim=1) == torch.arange(len(seen))
        counts += torch.tensor([found.sum(), len(found)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    pairs = Pairs(rank, args.steps * args.batch_size)
    loader = DataLoader(pairs, batch_size=args.batch_size, num_workers=args.workers)

    started = time.monotonic()
    for step, (pictures, captions) in enumerate(loader):
        optimizer.zero_grad()
        seen, said = model(pictures, captions)
        loss = contrastive_loss(seen, said)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step > 0 and step % args.evaluate_every == 0:
            found = evaluate(model.module, rank, args.batch_size)
            if rank == 0:
                print(f"captions found: {found:.3f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))
        started = time.monotonic()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
