"""Semi-supervised training: a student learns from few labels and from the moving average of itself."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from average import Teacher
from data import Curves
from model import Classifier
from snapshots import Snapshots
from torch import nn
from torch.nn import functional as F

# Rank 0 has the console to write already.
SNAPSHOT_RANK = 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=0.95)
    parser.add_argument("--share-every", type=int, default=10)
    parser.add_argument("--validate-every", type=int, default=20)
    parser.add_argument("--snapshot-every", type=int, default=15)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def average_gradients(model: nn.Module) -> None:
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part in zip(model.parameters(), flat.split(sizes), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


@torch.no_grad()
def validate(teacher: Teacher, rank: int, batch_size: int, batches: int = 4) -> float:
    """Accuracy of the teacher on held-out curves of all ranks."""
    held_out = Curves(10_000 + rank, batch_size)
    counts = torch.zeros(2)
    for number in range(batches):
        curves, kinds, _ = held_out.batch(number)
        counts += torch.tensor([(teacher.network(curves).argmax(1) == kinds).sum(), len(kinds)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    args.out.mkdir(exist_ok=True)

    torch.manual_seed(0)
    student = Classifier()
    teacher = Teacher(student, args.decay)
    optimizer = torch.optim.SGD(student.parameters(), lr=args.lr, momentum=0.9)
    curves_of_rank = Curves(rank, args.batch_size)
    snapshots = Snapshots(teacher, args.out) if rank == SNAPSHOT_RANK else None

    for step in range(args.steps):
        started = time.monotonic()
        curves, kinds, known = curves_of_rank.batch(step)
        optimizer.zero_grad()
        scores = student(curves)
        taught = F.mse_loss(scores.softmax(-1), teacher.network(curves).softmax(-1))
        loss = F.cross_entropy(scores[known], kinds[known]) + taught
        loss.backward()
        average_gradients(student)
        optimizer.step()
        teacher.follow(student)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step > 0 and step % args.share_every == 0:
            teacher.share()
        if snapshots and step > 0 and step % args.snapshot_every == 0:
            snapshots.begin(step)
        if step > 0 and step % args.validate_every == 0:
            accuracy = validate(teacher, rank, args.batch_size)
            if rank == 0:
                print(f"accuracy of the teacher: {accuracy:.3f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
