"""Runs out of GPU memory, and leaves snapshots of it. MEMORY: fragmented, peak or leak."""

import os
import socket

import torch
from torch import nn

KIND = os.environ["MEMORY"]


class Tower(nn.Module):
    def __init__(self, width=2048, depth=4):
        super().__init__()
        widen = [nn.Linear(width, 4 * width) for _ in range(depth)]
        self.blocks = nn.ModuleList(nn.Sequential(wide, nn.GELU(), nn.Linear(4 * width, width)) for wide in widen)
        self.head = nn.Linear(width, 50000)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def train(model, steps, hoard=None):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for step in range(steps):
        out = model(torch.randn(512, 2048, device="cuda"))
        out.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if hoard is not None:
            hoard.append(out)
        print("step", step, "allocated", torch.cuda.memory_allocated() >> 20, "MiB", flush=True)


def gather_logits():
    return torch.empty(4 << 30, dtype=torch.uint8, device="cuda")


def main():
    os.unshare(os.CLONE_NEWUTS)
    socket.sethostname("node-0")
    torch.cuda.set_device(0)
    torch.cuda.memory._record_memory_history(max_entries=20000, stacks="python")
    torch.cuda.set_per_process_memory_fraction({"fragmented": 0.25, "peak": 0.06, "leak": 0.08}[KIND])
    try:
        if KIND == "fragmented":
            blocks = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(2000)]
            kept = blocks[::2]
            del blocks
            gather_logits()
            del kept
        elif KIND == "peak":
            train(Tower(depth=6).cuda(), 3)
        else:
            train(Tower(depth=2).cuda(), 400, [])
    except torch.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot("oom-rank0.pickle")
        raise


if __name__ == "__main__":
    main()
