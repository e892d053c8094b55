"""What is reported while the model trains."""

import time

import torch
from data import LENGTH
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

PROMPT = (5, 17, 32, 83)


class StepPrinter(TrainerCallback):
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)
        if "eval_loss" in logs:
            print(f"evaluation loss {float(logs['eval_loss']):.4f}", flush=True)


class Pace(TrainerCallback):
    """The machine is shared: do not take more of it than we were asked to."""

    def __init__(self, steps_per_second: float) -> None:
        self.pause_s = 1.0 / steps_per_second
        self.started = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        time.sleep(max(0.0, self.started + self.pause_s - time.monotonic()))
        self.started = time.monotonic()


class Samples(TrainerCallback):
    """Lets the model continue a prompt now and then, to see what it has learnt."""

    def __init__(self, every: int, tokens: int) -> None:
        self.every = every
        self.tokens = tokens

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel,
        **kwargs: object,
    ) -> None:
        if state.global_step % self.every == 0 and state.is_world_process_zero:
            tokens = self.sample(model)
            print(f"sample {tokens.tolist()}", flush=True)

    @torch.no_grad()
    def sample(self, model: PreTrainedModel) -> torch.Tensor:
        model.eval()
        tokens = torch.tensor([PROMPT])
        for _ in range(self.tokens):
            scores = model(input_ids=tokens[:, -LENGTH:]).logits[:, -1]
            tokens = torch.cat([tokens, scores.argmax(dim=-1, keepdim=True)], dim=1)
        model.train()
        return tokens[0]
