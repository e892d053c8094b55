"""Data × tensor parallel training of a small language model on a two-dimensional device mesh."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Shard
from model import LanguageModel, parallelize
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--tensor-parallel", type=int, default=2)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shape = (world // args.tensor_parallel, args.tensor_parallel)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))

    torch.manual_seed(0)
    model = parallelize(LanguageModel(VOCABULARY), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, foreach=False)
    shard = Shard(mesh.get_local_rank("dp"), args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        tokens = shard.batch(step)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
