"""Chooses when each rank's dump is taken, and how far its host's clock is off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ddx_evals.simulator.engine import RankRun
from ddx_evals.simulator.training.mesh import RANKS_A_HOST

_S = 1_000_000_000


class Occasion(Enum):
    """Why dumps were taken."""

    TIMEOUT = "timeout"
    """A watchdog's timeout; the other ranks follow its signal within seconds."""
    AT_ONCE = "at once"
    """All ranks were asked at one moment."""
    SPREAD = "spread"
    """The ranks were asked one by one: seconds to minutes between the dumps."""


@dataclass(frozen=True)
class Moments:
    """The moments of the dumps, `at_ns[rank]` in true time."""

    occasion: Occasion
    at_ns: list[int]
    settled: bool
    """Whether every dump was taken after the last event."""


def of_hang(
    runs: Sequence[RankRun], timeout_ns: int, *, by_timeout: bool, asked: bool, choice: random.Random
) -> Moments:
    """The moments of dumps of a hung job: taken by a watchdog, or `asked` for."""
    still_ns = settled_ns(runs)
    created_ns, first = min(
        (issued.created, run.rank)
        for run in runs
        for issued in run.issued
        if issued.ended is None or issued.ended - issued.created > timeout_ns
    )
    timeout_at_ns = created_ns + timeout_ns + choice.randrange(_S // 10)
    occasion = Occasion.TIMEOUT
    if asked or (not by_timeout and choice.random() < 0.25):
        occasion = choice.choice((Occasion.AT_ONCE, Occasion.AT_ONCE, Occasion.SPREAD))
    if occasion is Occasion.TIMEOUT:
        at_ns = [timeout_at_ns + choice.randrange(3 * _S) for _ in runs]
        at_ns[first] = timeout_at_ns
    elif occasion is Occasion.AT_ONCE:
        asked_ns = still_ns + _patience_ns(runs) + choice.randrange(min(timeout_ns, 500 * _S))
        at_ns = [asked_ns + choice.randrange(_S // 3) for _ in runs]
    elif choice.random() < 0.25:
        begin = min(run.issued[0].created for run in runs if run.issued)
        early = begin + (still_ns - begin) * 2 // 3
        at_ns = [choice.randrange(early, still_ns + 60 * _S) for _ in runs]
    else:
        at_ns = [still_ns + _patience_ns(runs) + choice.randrange(200 * _S) for _ in runs]
    return Moments(occasion, at_ns, by_timeout or min(at_ns) > still_ns)


def of_running(runs: Sequence[RankRun], choice: random.Random, *, late: bool = False) -> Moments:
    """The moments of dumps of a running job: anywhere within the simulation, or `late` in it."""
    begin = max(run.issued[0].created for run in runs)
    end = min(run.issued[-1].created for run in runs)
    length = end - begin
    if choice.random() < 0.35 and not late:
        at_ns = [begin + length * 2 // 5 + choice.randrange(length * 3 // 5) for _ in runs]
        return Moments(Occasion.SPREAD, at_ns, False)
    asked_ns = begin + int(length * (choice.uniform(0.85, 0.95) if late else choice.uniform(0.5, 0.95)))
    at_ns = [asked_ns + choice.randrange(_S // 5) for _ in runs]
    return Moments(Occasion.AT_ONCE, at_ns, False)


def _patience_ns(runs: Sequence[RankRun]) -> int:
    """How long a job must make no progress until it exceeds its usual waiting."""
    usual = max(i.ended - i.created for run in runs for i in run.issued if i.ended is not None)
    return max(5 * _S, 4 * usual)


def settled_ns(runs: Sequence[RankRun]) -> int:
    """The time of the last event."""
    return max(
        max(
            run.cpu_ns, run.main_ns, *(issued.ended or issued.started or issued.created for issued in run.issued[-200:])
        )
        for run in runs
        if run.issued
    )


def skews_ns(world_size: int, choice: random.Random) -> list[int]:
    """How far each rank's clock is ahead; the ranks of a host share a clock."""
    hosts = -(-world_size // RANKS_A_HOST)
    kind = choice.random()
    if kind < 0.3:
        limit = 0
    elif kind < 0.9:
        limit = choice.choice((20, 200, 2000)) * 1_000_000
    else:
        limit = 180 * _S
    of_host = [choice.randrange(-limit, limit + 1) for _ in range(hosts)]
    return [of_host[rank // RANKS_A_HOST] for rank in range(world_size)]
