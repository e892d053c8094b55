"""Tensor-parallel training of a small language model on a mesh of one dimension."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Corpus
from model import LanguageModel
from plan import layout, parallelize, whole_checksum
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--report-every", type=int, default=10)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))

    torch.manual_seed(0)
    model = parallelize(LanguageModel(VOCABULARY), mesh)
    print(f"[rank {rank}] {layout(model)}", flush=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, foreach=False)
    corpus = Corpus(args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        tokens = corpus.batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.report_every == 0:
            print(
                f"[rank {rank}] step {step}: own loss {loss.item():.4f}, whole weights {whole_checksum(model):.5f}",
                flush=True,
            )
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
