"""Trains a small model, looks at some steps, and prints how long steps and looks take, as JSON."""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

PAYLOAD = Path(__file__).parents[2] / "tools/ddx_tools/payloads/site"


def main() -> None:
    """`looked_at_steps.py DIRECTORY STEPS LOOKED_AT`."""
    directory, steps, looked_at = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.environ.update(DDX_CONSISTENCY_DIR=directory, DDX_CONSISTENCY=looked_at)
    sys.path.insert(0, str(PAYLOAD))
    import torch

    ddx_consistency = import_module("ddx_consistency")

    torch.set_num_threads(1)
    chosen = {int(step) for step in looked_at.split(",")}
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(64, 1024)
    told: dict[str, list[float]] = {"without": [], "call_s": [], "look_s": []}
    for step in range(steps):
        began = time.perf_counter()
        model(batch).square().mean().backward()
        before = time.perf_counter()
        ddx_consistency.look(step, model, optimizer, batch=batch)
        after = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        if step in chosen:
            told["look_s"].append(after - before)
        elif step + 1 not in chosen and step > 5:
            told["call_s"].append(after - before)
            told["without"].append(time.perf_counter() - after + before - began)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
