"""Takes the dumps of a completed run, loses some, and judges what the rest shows."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ddx_evals.simulator import moments
from ddx_evals.simulator.dump_format import Writer
from ddx_evals.simulator.engine import RankRun
from ddx_evals.simulator.faults.draft import Injection
from ddx_evals.simulator.judgement import Seen, judge
from ddx_evals.simulator.moments import Moments
from ddx_evals.simulator.recording import Counters, Recorder, RecorderView, number
from ddx_evals.simulator.running import Ran
from ddx_evals.simulator.training.mesh import RANKS_A_HOST
from ddx_evals.simulator.truth import SimulatedTruth

_RINGS = (64, 128, 256, 500, 1000, 2000)


@dataclass(frozen=True)
class Dumps:
    """The dump files by name, with their write times, a description, and the truth."""

    files: dict[str, bytes]
    taken_ns: dict[str, int]
    description: dict[str, object]
    truth: SimulatedTruth
    skews_ns: list[int]
    """How far the clock of each rank's host is ahead."""


def dump(
    ran: Ran,
    kind: str,
    choice: random.Random,
    *,
    ring: int | None,
    lost: float | None,
    by_timeout: bool = False,
    active: bool = False,
) -> Dumps:
    """Take the dumps of a job; `ring` and `lost` replace the seed's choices and change nothing else.

    With `by_timeout`, dumps of a hang are always taken by the watchdog. With `active`, NCCL dumps have only active
    work.
    """
    draft, injection = ran.draft, ran.injection
    taken = _moments(ran, choice, by_timeout=by_timeout)
    skews_ns = moments.skews_ns(draft.mesh.world_size, choice)
    chosen_ring = choice.choice(_RINGS)
    only_active = (choice.random() < 0.06 or active) and not draft.gloo
    recorder = Recorder(draft.gloo, draft.timing, ring or chosen_ring, only_active)
    missing = _missing(draft.mesh.world_size, injection, lost, choice)
    _number(ran, recorder.ring, choice.choice((0, 1, 3, 40)))
    writer = Writer(draft.mesh, draft.style, skews_ns)
    files: dict[str, bytes] = {}
    taken_ns: dict[str, int] = {}
    views: dict[int, RecorderView] = {}
    for run in ran.runs:
        if run.rank not in missing:
            view = RecorderView(run, recorder, taken.at_ns[run.rank], frozen_ns=_frozen_ns(run, injection))
            views[run.rank] = view
            written = writer.files(run.rank, view)
            files |= written
            taken_ns |= dict.fromkeys(written, view.at_ns + skews_ns[run.rank])
    seen = Seen(draft, ran.runs, views, taken, recorder, missing)
    description = {"kind": kind, **_described(seen), "clocks_apart_s": (max(skews_ns) - min(skews_ns)) / 1e9}
    return Dumps(files, taken_ns, description, judge(kind, injection, seen), skews_ns)


def _moments(ran: Ran, choice: random.Random, *, by_timeout: bool) -> Moments:
    injection, style = ran.injection, ran.draft.style
    if injection is None or not (injection.hangs or injection.by_timeout):
        return moments.of_running(ran.runs, choice, late=injection is not None)
    timeout_ns = style.timeout_ms * 1_000_000
    by_timeout = by_timeout or injection.by_timeout
    asked = style.header and not by_timeout
    return moments.of_hang(ran.runs, timeout_ns, by_timeout=by_timeout, asked=asked, choice=choice)


def _missing(world_size: int, injection: Injection | None, lost: float | None, choice: random.Random) -> set[int]:
    """The ranks without a dump: dead ranks, and those whose file was lost."""
    dead = set(injection.dead) if injection is not None else set()
    order = list(range(world_size))
    choice.shuffle(order)
    some, of_a_host, count = choice.random() < 0.12, choice.random() < 0.3, choice.randrange(1, 3)
    if lost is not None:
        return dead | set(order[: int(world_size * lost)])
    if not some:
        return dead
    if world_size >= 4 * RANKS_A_HOST and of_a_host:
        host = order[0] // RANKS_A_HOST
        return dead | {rank for rank in order if rank // RANKS_A_HOST == host}
    return dead | set(order[:count])


def _number(ran: Ran, ring: int, cycles: int) -> None:
    """Number the records of all ranks, after `cycles` past cycles if every ring has wrapped within the simulation."""
    wrapped = min(len(run.issued) for run in ran.runs) > ring
    for run, cycle in zip(ran.runs, ran.draft.cycles, strict=True):
        before = Counters()
        for part, times in cycle if wrapped and cycles else ():
            for instruction in part:
                before.count(instruction, times * cycles, gloo=ran.draft.gloo)
        number(run, before, gloo=ran.draft.gloo)


def _frozen_ns(run: RankRun, injection: Injection | None) -> int | None:
    """When a rank's watchdog stopped noticing: just before the first completion that it missed."""
    missed = injection.frozen.get(run.rank) if injection is not None else None
    if missed is None:
        return None
    ended = sorted(issued.ended for issued in run.issued if issued.ended is not None)
    return ended[-min(missed, len(ended))] - 1


def _described(seen: Seen) -> dict[str, object]:
    mesh, style, at_ns = seen.draft.mesh, seen.draft.style, seen.moments.at_ns
    return {
        "world_size": mesh.world_size,
        "mesh": {**mesh.sizes, "ep": mesh.experts},
        "backend": style.backend,
        "version": style.version,
        "json": style.as_json,
        "frames": style.frames and not style.as_json,
        "timing": seen.draft.timing,
        "header": style.header,
        "occasion": seen.moments.occasion.value,
        "spread_s": (max(at_ns) - min(at_ns)) / 1e9,
        "ring": seen.recorder.ring,
        "only_active": seen.recorder.only_active,
        "no_dump_of": sorted(seen.missing),
    }
