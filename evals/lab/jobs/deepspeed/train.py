"""A classifier of pages with pictures, its parameters and optimizer partitioned by DeepSpeed."""

import argparse
import time
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from data import Pages
from deepspeed.ops.op_builder.all_ops import ALL_OPS
from model import PageClassifier

# The training image has no compiler: do without the extensions.
deepspeed.ops.__compatible_ops__ = dict.fromkeys(ALL_OPS, False)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--max-steps-per-second", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def configuration(args: argparse.Namespace) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulate,
        # The model is small: partition the parameters that DeepSpeed would rather keep whole as well.
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    }


def main() -> None:
    args = parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = PageClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration(args))

    pages = Pages(rank, args.batch_size)
    started = time.monotonic()
    for step in range(args.steps):
        tokens, pictures, labels = pages.batch(step)
        loss = engine(tokens, pictures, labels)
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {step} loss {float(loss):.4f}", flush=True)

        if step > 0 and step % args.save_every == 0:
            engine.save_checkpoint(str(args.out), tag=f"step-{step}")

        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))
        started = time.monotonic()


if __name__ == "__main__":
    main()
