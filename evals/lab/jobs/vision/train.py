"""DistributedDataParallel training of a small image classifier, in epochs, with an evaluation after each."""

import argparse
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint import resume, save
from data import CLASSES, training_loader, validation_loader
from model import Classifier
from report import report
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--steps-per-epoch", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--report-every", type=int, default=10)
    parser.add_argument("--timeout-s", type=float, default=600.0)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """Accuracy over the validation photographs of all ranks."""
    model.eval()
    counts = torch.zeros(2)
    for images, labels, _ in loader:
        counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    model.train()
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank, world = dist.get_rank(), dist.get_world_size()
    args.out.mkdir(exist_ok=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier(CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = resume(model, optimizer, args.out)
    loader = training_loader(args.steps_per_epoch, args.batch_size, args.workers, rank, world)
    validation = validation_loader(4, args.batch_size, rank)

    for epoch in range(step // args.steps_per_epoch, args.epochs):
        loader.sampler.set_epoch(epoch)
        started = time.monotonic()
        for images, labels, numbers in loader:
            loss = train_step(model, optimizer, images, labels)
            if rank == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
            if step % args.report_every == 0:
                report(rank, step, loss, model, numbers)
            step += 1
            # The machine is shared: do not take more of it than we were asked to.
            time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))
            started = time.monotonic()

        accuracy = evaluate(model.module, validation)
        if rank == 0:
            print(f"epoch {epoch}: validation accuracy {accuracy:.3f}", flush=True)
        save(model, optimizer, step, args.out)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
