"""A classifier of sensor recordings, trained with Lightning."""

import argparse
import os
from pathlib import Path

import lightning as L
from callbacks import Pace, Snapshots, StepPrinter
from data import RecordingsModule
from lightning.pytorch.strategies import DDPStrategy
from model import RecordingClassifier


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--validate-every", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=-1,
        val_check_interval=args.validate_every,
        num_sanity_val_steps=0,
        callbacks=[StepPrinter(), Snapshots(args.save_every, args.out), Pace(args.max_steps_per_second)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RecordingClassifier(args.lr), datamodule=RecordingsModule(args.batch_size))


if __name__ == "__main__":
    main()
