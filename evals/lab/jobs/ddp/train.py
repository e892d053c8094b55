"""DistributedDataParallel training of a small image classifier."""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from data import CLASSES, PIXELS, Shard
from metrics import MetricsLog
from model import Classifier
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

# Rank 0 has the console to write already.
METRICS_RANK = 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save-every", type=int, default=1_000)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def train_step(model: DistributedDataParallel, images: torch.Tensor, labels: torch.Tensor) -> float:
    logits = model(images)
    loss = F.cross_entropy(logits, labels, reduction="sum") / len(labels)
    loss.backward()
    return float(loss.detach())


def save_checkpoint(model: DistributedDataParallel, step: int, out: Path) -> None:
    dcp.save({"model": model.module.state_dict()}, checkpoint_id=out / f"step-{step}")


def write_summary(rank: int, world: int, steps: int, out: Path) -> None:
    """Each rank leaves its summary; the run is complete when all of them are there."""
    (out / f"summary-{rank}.json").write_text(json.dumps({"rank": rank, "steps": steps}))
    while len(list(out.glob("summary-*.json"))) < world:
        time.sleep(1.0)


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.out.mkdir(exist_ok=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier(PIXELS, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    shard = Shard(rank, args.batches, args.batch_size)
    loader = DataLoader(shard, batch_size=args.batch_size, num_workers=args.workers)

    metrics = MetricsLog(args.out / "metrics.jsonl") if rank == METRICS_RANK else None

    step = 0
    started = time.monotonic()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = train_step(model, images, labels)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if metrics:
            metrics.log({"step": step, "loss": loss})

        if step > 0 and step % args.save_every == 0:
            save_checkpoint(model, step, args.out)
            dist.barrier()

        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))
        started = time.monotonic()

    write_summary(rank, world, step + 1, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
