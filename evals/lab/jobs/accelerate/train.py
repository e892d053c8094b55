"""Token tagging with Accelerate."""

import argparse
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import set_seed
from data import collate, load_sets
from evaluation import evaluate
from model import Tagger, tagging_loss
from torch.utils.data import DataLoader


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--evaluate-every", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=1_000)
    parser.add_argument("--timeout-s", type=int, default=1_800)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def batches(loader: DataLoader, epochs: int) -> Iterator[dict[str, torch.Tensor]]:
    for _ in range(epochs):
        yield from loader


def main() -> None:
    args = parse_args()
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=args.timeout_s))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[timeout])
    set_seed(args.seed)

    # The first process encodes, the others find the result in the cache.
    with accelerator.main_process_first():
        training, validation = load_sets(args.cache)
    loader = DataLoader(training, batch_size=args.batch_size, collate_fn=collate, drop_last=True)
    validation_loader = DataLoader(validation, batch_size=args.batch_size, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader, validation_loader = accelerator.prepare(model, optimizer, loader, validation_loader)

    started = time.monotonic()
    for step, batch in enumerate(batches(loader, args.epochs)):
        optimizer.zero_grad()
        loss = tagging_loss(model(batch["tokens"]), batch["tags"])
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

        if step > 0 and step % args.evaluate_every == 0:
            accuracy = evaluate(accelerator, model, validation_loader)
            accelerator.print(f"validation accuracy {accuracy:.3f}", flush=True)
        if step > 0 and step % args.save_every == 0:
            accelerator.wait_for_everyone()
            accelerator.save_model(model, args.out / f"step-{step}")

        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))
        started = time.monotonic()

    accelerator.wait_for_everyone()  # nobody leaves while others still train
    accelerator.end_training()


if __name__ == "__main__":
    main()
