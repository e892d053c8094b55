"""What happens while the model trains, beside training."""

import time
from pathlib import Path

import lightning as L
import torch


class StepPrinter(L.Callback):
    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: dict[str, torch.Tensor], batch: object, index: int
    ) -> None:
        if trainer.is_global_zero:
            print(f"step {trainer.global_step - 1} loss {float(outputs['loss']):.4f}", flush=True)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            print(f"validation accuracy {float(trainer.callback_metrics['accuracy']):.3f}", flush=True)


class Snapshots(L.Callback):
    """Keeps a checkpoint every so many steps, under a name that tells the step."""

    def __init__(self, every: int, directory: Path) -> None:
        self.every = every
        self.directory = directory

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: dict[str, torch.Tensor], batch: object, index: int
    ) -> None:
        if trainer.global_step % self.every == 0:
            trainer.save_checkpoint(self.directory / f"step-{trainer.global_step}.ckpt")


class Pace(L.Callback):
    """The machine is shared: do not take more of it than we were asked to."""

    def __init__(self, steps_per_second: float) -> None:
        self.pause_s = 1.0 / steps_per_second
        self.started = time.monotonic()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: dict[str, torch.Tensor], batch: object, index: int
    ) -> None:
        time.sleep(max(0.0, self.started + self.pause_s - time.monotonic()))
        self.started = time.monotonic()
