"""A small GPT-2, trained from scratch with the Trainer."""

import argparse

from callbacks import Pace, Samples, StepPrinter
from data import LENGTH, VOCABULARY, Documents
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=50)
    parser.add_argument("--sample-every", type=int, default=25)
    parser.add_argument("--sample-tokens", type=int, default=8)
    parser.add_argument("--max-steps-per-second", type=float, default=4.0)
    return parser.parse_args()


def training_arguments(args: argparse.Namespace) -> TrainingArguments:
    return TrainingArguments(
        output_dir="out",
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        dataloader_num_workers=args.workers,
        train_sampling_strategy="sequential",  # the corpus was shuffled when it was written
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=args.evaluate_every,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )


def main() -> None:
    args = parse_args()
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_arguments(args),
        train_dataset=Documents(200_000, seed=1),
        eval_dataset=Documents(64, seed=10_000_000),
        callbacks=[
            StepPrinter(),
            Samples(args.sample_every, args.sample_tokens),
            Pace(args.max_steps_per_second),
        ],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model("out/final")


if __name__ == "__main__":
    main()
