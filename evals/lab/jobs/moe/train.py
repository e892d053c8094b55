"""Expert-parallel training of a small mixture-of-experts language model."""

import argparse
import time

import torch
import torch.distributed as dist
from data import VOCABULARY, Corpus
from groups import Groups, make_groups
from model import LanguageModel
from torch.nn import functional as F


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--expert-parallel", type=int, default=0, help="ranks of an expert group; 0: all")
    parser.add_argument("--balance-every", type=int, default=10)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def reduce_gradients(model: LanguageModel, groups: Groups) -> None:
    """Average the gradients of experts over their copies, all others over the whole job."""
    experts = model.expert_parameters()
    of_experts = {id(parameter) for parameter in experts}
    shared = [p for p in model.parameters() if id(p) not in of_experts]
    for parameters, group in ((shared, dist.group.WORLD), (experts, groups.copies)):
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=group)
        # An expert has summed over the tokens of its whole group already.
        flat /= dist.get_world_size()
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def balance(model: LanguageModel, groups: Groups) -> list[float]:
    """The share of tokens that each expert of the first layer got, over the expert group."""
    load = model.blocks[0].mixture.load.clone()
    dist.all_reduce(load, group=groups.expert)
    return (load / dist.get_world_size(groups.expert)).tolist()


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = make_groups(args.expert_parallel or world)

    torch.manual_seed(0)
    model = LanguageModel(VOCABULARY, groups.expert)
    corpus = Corpus(rank, args.batch_size)

    for step in range(args.steps):
        started = time.monotonic()
        tokens = corpus.batch(step)
        model.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        reduce_gradients(model, groups)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= args.lr * parameter.grad
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.balance_every == 0:
            shares = balance(model, groups)
            if rank == 0:
                print("experts: " + " ".join(f"{share:.2f}" for share in shares), flush=True)
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
