"""Lines that libraries print in any job and that say nothing about its fault, to lengthen logs with.

They are of the kinds that fill real logs: downloads, progress bars, warnings, deprecations, settings dumps, steps,
heartbeats, model summaries, run trackers. Names and numbers differ from line to line. No line comes from an incident.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

_WORDS = (
    "alpha", "amber", "atlas", "basalt", "birch", "cedar", "cobalt", "coral", "delta", "ember", "falcon",
    "garnet", "harbor", "indigo", "jasper", "lagoon", "maple", "meadow", "nectar", "onyx", "opal", "pebble",
    "quartz", "raven", "saffron", "sierra", "tundra", "umber", "velvet", "willow", "zephyr",
)  # fmt: skip
_LAYERS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "norm")
_SETTINGS = (
    "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "attention_dropout",
    "rope_theta", "initializer_range", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "lr_scheduler_type", "logging_steps", "eval_steps", "save_steps", "seed", "data_seed",
    "dataloader_num_workers", "gradient_accumulation_steps", "bf16", "tf32", "optim", "report_to", "run_name",
    "output_dir", "per_device_train_batch_size", "remove_unused_columns", "label_smoothing_factor",
    "ddp_find_unused_parameters", "push_to_hub",
)  # fmt: skip
_WARNINGS = (
    "FutureWarning: `resume_download` is deprecated and will be removed in version 1.0.0.",
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "DeprecationWarning: pkg_resources is deprecated as an API.",
    "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
    "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated.",
    "UserWarning: Was asked to gather along dimension 0, but all input tensors were scalars.",
)
_LOUD = (
    "apex is not installed, falling back to the fused kernels of torch (import error ignored)",
    "Unable to register cuDNN factory: one has already been registered",
    "could not find TensorRT; optional plugins are not available",
    "failed to import flash_attn_3, using the previous version instead",
    "tokenizer has no pad token, missing keys are initialised anew",
    "cannot read the optional file of generation settings, defaults are taken",
    "retries on error: 3, timeout 600 s, ignore_errors False",
    "sequence is longer than the specified maximum, exceeding tokens are cut",
)
"""Lines that sound like failures but are printed in healthy jobs."""


class Chatter:
    """Neutral lines, a few at a time; the same seed gives the same lines.

    `moves`: whether step lines are among them, which show that the job makes progress. `start`: the time of the first
    line; each comes a little later.
    """

    def __init__(self, seed: int, *, moves: bool = True, start: datetime | None = None) -> None:
        self._random = random.Random(seed)
        self._time = start or datetime(2026, 3, 1, 8)
        self._step = 0
        self._kinds: tuple[Callable[[], Iterator[str]], ...] = (
            self._download,
            self._warning,
            self._loud,
            self._settings,
            self._model,
            self._dataset,
            self._files,
            self._follower,
            self._deprecated,
            self._packages,
            self._parameters,
            *((self._steps, self._bar, self._heartbeat) if moves else ()),
        )

    def some(self) -> list[str]:
        """The lines of one message of a library."""
        return list(self._random.choice(self._kinds)())

    def _stamp(self) -> str:
        self._time += timedelta(milliseconds=self._random.randrange(5, 900))
        return self._time.isoformat(" ", "milliseconds").replace(".", ",")

    def _word(self) -> str:
        return f"{self._random.choice(_WORDS)}-{self._random.choice(_WORDS)}"

    def _hex(self, digits: int = 16) -> str:
        return f"{self._random.getrandbits(digits * 4):0{digits}x}"

    def _download(self) -> Iterator[str]:
        name = f"{self._word()}-{self._random.randrange(1, 31):05d}-of-00030.safetensors"
        for done in sorted(self._random.sample(range(101), 3)):
            bar = "█" * (done // 10) + " " * (10 - done // 10)
            speed = self._random.uniform(20, 900)
            times = f"00:{done // 4:02d}<00:{25 - done // 4:02d}"
            yield f"{name}: {done:3d}%|{bar}| {done * 49}M/4.90G [{times}, {speed:.0f}MB/s]"

    def _warning(self) -> Iterator[str]:
        library = self._random.choice(("transformers/utils/hub", "torch/utils/_pytree", "datasets/load", "apex/amp"))
        line = self._random.randrange(20, 2000)
        yield f"/opt/env/lib/python3.11/site-packages/{library}.py:{line}: {self._random.choice(_WARNINGS)}"
        yield "  warnings.warn("

    def _loud(self) -> Iterator[str]:
        name = f"{self._random.choice(_WORDS)}.{self._random.choice(_WORDS)}"
        yield f"{self._stamp()} [WARNING] {name}:{self._random.randrange(20, 900)}: {self._random.choice(_LOUD)}"

    def _settings(self) -> Iterator[str]:
        yield f"{self._stamp()} - INFO - arguments of {self._word()}:"
        for name in self._random.sample(_SETTINGS, 8):
            value = self._random.choice(("True", "False", "None", str(self._random.randrange(1, 65536)), "1e-05"))
            yield f"  {name} {'.' * (48 - len(name))} {value}"

    def _heartbeat(self) -> Iterator[str]:
        node, load = self._random.randrange(64), self._random.random()
        yield f"{self._stamp()} INFO heartbeat: node-{node} alive, load {load:.2f}"

    def _steps(self) -> Iterator[str]:
        for _ in range(self._random.randrange(1, 6)):
            self._step += 1
            loss, norm = self._random.uniform(1, 4), self._random.uniform(0.1, 3)
            yield (
                f"{self._stamp()} - trainer - INFO - step {self._step}  loss {loss:.4f}  grad_norm {norm:.3f}  "
                f"lr {self._random.uniform(1e-6, 1e-4):.3e}  tokens/s {self._random.randrange(9000, 52000)}"
            )

    def _model(self) -> Iterator[str]:
        for number in range(self._random.randrange(2, 6)):
            shape = f"[{self._random.choice((1024, 2048, 4096))}, {self._random.choice((1024, 4096, 11008))}]"
            yield f"model.layers.{number}.{self._random.choice(_LAYERS)}.weight  torch.Size({shape})  bf16"

    def _dataset(self) -> Iterator[str]:
        shown, total = self._random.randrange(100_000), 100_000
        percent, seconds = shown * 100 // total, shown % 60
        yield f"Map (num_proc=8): {percent:3d}%|### | {shown}/{total} [00:{seconds:02d}<01:10, 311.4 examples/s]"
        yield f"{self._stamp()} - datasets.builder - INFO - Reusing dataset {self._word()} (/cache/{self._hex()})"

    def _files(self) -> Iterator[str]:
        yield f"{self._stamp()} - INFO - wrote metrics to /scratch/runs/{self._word()}/events.out.{self._hex(8)}"

    def _follower(self) -> Iterator[str]:
        run = f"{self._word()}-{self._random.randrange(1, 900)}"
        yield f"wandb: Run data is saved locally in /scratch/wandb/run-{self._random.randrange(20260101, 20261231)}"
        yield f"wandb: Syncing run {run}"
        yield f"wandb: View project at https://wandb.example/{self._word()}/{self._word()}"
        yield f"{self._stamp()} INFO mlflow.tracking.client: logged {self._random.randrange(2, 90)} metrics of {run}"

    def _deprecated(self) -> Iterator[str]:
        old, new = self._random.sample(_SETTINGS, 2)
        release = f"{self._random.randrange(1, 6)}.{self._random.randrange(40)}"
        line = self._random.randrange(40, 900)
        yield f"[{self._stamp()}] [WARNING] [config.py:{line}] {old} is deprecated, use {new}"
        yield f"DeprecationWarning: argument {old!r} will be removed in v{release}; pass {new!r} from now on"

    def _packages(self) -> Iterator[str]:
        for _ in range(self._random.randrange(2, 5)):
            version = ".".join(str(self._random.randrange(30)) for _ in range(3))
            name = self._word()
            where = "/opt/env/lib/python3.11/site-packages"
            yield f"Requirement already satisfied: {name}>={version} in {where} ({version})"

    def _parameters(self) -> Iterator[str]:
        total = self._random.randrange(10**8, 10**10)
        yield f"{self._stamp()} - {self._word()} - INFO - total parameters: {total:,}, trainable: {total // 3:,}"
        values = ", ".join(f"{name}={self._random.randrange(4096)}" for name in self._random.sample(_SETTINGS, 5))
        yield f"TrainerArguments({values})"

    def _bar(self) -> Iterator[str]:
        done, whole = self._random.randrange(1000), 1000
        bar = "#" * (done * 20 // whole)
        rate = self._random.uniform(1, 9)
        yield f"Training: {done / 10:5.1f}%|{bar:20}| {done}/{whole} [{done // 60:02d}:{done % 60:02d}, {rate:.2f}it/s]"
