"""Trains a small language model with DDP over NCCL; one GPU, and a host name of its own for each rank.

`record.py` writes what goes wrong in it (faults.yaml) to the places that comments mark.
"""

import datetime
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 1000
STEPS = 12


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build(width=512, depth=4):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.Linear(width, VOCABULARY))


def loss_of(model, tokens):
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def mean_of_ranks(value):
    total = value.detach().clone()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


def count_tokens(tokens):
    count = torch.tensor([tokens.numel()], device="cuda", dtype=torch.float32)
    dist.all_reduce(count)
    return count.item()


def load_batch(rank, step):
    tokens = torch.randint(0, VOCABULARY, (16, 128))
    # load
    return tokens.cuda(non_blocking=True)


# functions


def main():
    rank = int(os.environ["RANK"])
    os.unshare(os.CLONE_NEWUTS)
    socket.sethostname(f"node-{rank}")
    torch.cuda.set_device(0)
    torch.manual_seed(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=40))
    # init
    model = DistributedDataParallel(build().cuda(), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    # before
    for step in range(STEPS):
        tokens = load_batch(rank, step)
        # step
        loss = loss_of(model, tokens)
        loss.backward()
        # gradients
        optimizer.step()
        optimizer.zero_grad()
        # after
        tokens_seen = count_tokens(tokens)
        mean = mean_of_ranks(loss)
        if rank == 0:
            print(f"step {step} loss {mean:.4f} tokens {tokens_seen:.0f}", flush=True)
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
