"""Adversarial training of a generator and a discriminator, in turns, each reduced over a group of its own."""

import argparse
import time

import torch
import torch.distributed as dist
from data import Spiral
from model import make_discriminator, make_generator
from player import Player
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--report-every", type=int, default=10)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def train_discriminator(generator: Player, discriminator: Player, spiral: Spiral, step: int) -> float:
    real = discriminator.network(spiral.real(step))
    fake = discriminator.network(generator.network(spiral.noise(step)).detach())
    return discriminator.improve(F.softplus(-real).mean() + F.softplus(fake).mean())


def train_generator(generator: Player, discriminator: Player, spiral: Spiral, step: int) -> float:
    fake = discriminator.network(generator.network(spiral.noise(step)))
    return generator.improve(F.softplus(-fake).mean())


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    generator = Player(make_generator(), args.lr)
    discriminator = Player(make_discriminator(), args.lr)
    spiral = Spiral(rank, args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        told_apart = train_discriminator(generator, discriminator, spiral, step)
        imitated = train_generator(generator, discriminator, spiral, step)
        if rank == 0:
            print(f"step {step} loss {imitated:.4f}", flush=True)
        if step % args.report_every == 0:
            print(
                f"[rank {rank}] step {step}: told apart {told_apart:.4f}, imitated {imitated:.4f}, "
                f"weights {generator.checksum():.4f} {discriminator.checksum():.4f}",
                flush=True,
            )
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
