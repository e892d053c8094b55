"""Policy gradient with actors that play and a learner that trains: weights are broadcast, episodes gathered."""

import argparse
import time

import torch
import torch.distributed as dist
from actor import LEARNER, Actor, share_weights
from learner import collect, improve
from model import Policy


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=6, help="that an actor plays in a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--report-every", type=int, default=10)
    parser.add_argument("--max-steps-per-second", type=float, default=5.0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(rank)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    actor = Actor(rank, args.episodes)

    for step in range(args.steps):
        started = time.monotonic()
        share_weights(policy)
        if rank == LEARNER:
            episodes = collect([])
            loss = improve(policy, optimizer, episodes)
            print(f"step {step} loss {loss:.4f}", flush=True)
            if step % args.report_every == 0:
                rewards = [episode.reward for episode in episodes]
                print(f"mean reward {sum(rewards) / len(rewards):.3f} of {len(rewards)} episodes", flush=True)
        else:
            collect(actor.play(policy, step))
        # The machine is shared: do not take more of it than we were asked to.
        time.sleep(max(0.0, started + 1.0 / args.max_steps_per_second - time.monotonic()))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
