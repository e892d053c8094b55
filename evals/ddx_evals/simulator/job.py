"""One simulated job, from a seed to dumps and truth."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

from ddx_evals.simulator.dumping import dump
from ddx_evals.simulator.faults import FAULTS
from ddx_evals.simulator.requirements import NCCL_ONLY
from ddx_evals.simulator.running import run
from ddx_evals.simulator.truth import HEALTHY, SimulatedTruth

KINDS = (HEALTHY, *FAULTS)

_COPIED_AFTER_NS = 3600 * 10**9
_WORLD_SIZES = (8, 8, 12, 16, 16, 24, 32, 32, 48, 64, 96, 128, 256, 512)


@dataclass(frozen=True)
class Request:
    """A request for a job: the same request gives the same job, whatever is kept of its dumps."""

    seed: int
    kind: str
    world_size: int
    gloo: bool


@dataclass(frozen=True)
class SimulatedJob:
    """The dumps of a job and the truth about it."""

    request: Request
    files: dict[str, bytes]
    """File contents by name: dumps, and an agent's headers."""
    taken_ns: dict[str, int]
    """The write time of each file, by its host's clock."""
    truth: SimulatedTruth
    description: dict[str, object]
    """The properties of the job and its dumps: mesh, backend, moments, ring, lost dumps."""


def simulate(
    seed: int,
    *,
    kind: str | None = None,
    world_size: int | None = None,
    gloo: bool | None = None,
    ring: int | None = None,
    lost: float | None = None,
    active: bool = False,
) -> SimulatedJob:
    """Simulate the job of a seed; given arguments replace the seed's choices.

    `lost` is the fraction of missing dumps besides those of dead ranks, `ring` the number of entries that a recorder
    keeps; with `active`, it omits finished entries (NCCL only). None of them changes what happens in the job.

    Raises:
        ValueError: no such kind, or a job of this size and backend has no place for such a fault.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"no fault of kind {kind!r}; there are {', '.join(KINDS)}")
    if gloo and kind in NCCL_ONLY:
        raise ValueError(f"there is no {kind} with Gloo")
    drawn = _drawn(seed)
    kind = kind or drawn.kind
    if gloo is None:
        gloo = drawn.gloo and kind not in NCCL_ONLY
    return _simulated(Request(seed, kind, world_size or drawn.world_size, gloo), ring, lost, active=active)


def size_of(seed: int) -> int:
    """The world size that a seed chooses."""
    return _drawn(seed).world_size


def _drawn(seed: int) -> Request:
    """The choices of a seed. All are drawn, so that giving one part does not change the others."""
    choice = random.Random(f"{seed}/job")
    return Request(
        seed,
        kind=choice.choice(KINDS + (HEALTHY,) * 3),
        world_size=choice.choice(_WORLD_SIZES),
        gloo=choice.random() < 0.2,
    )


def degrade(job: SimulatedJob, *, lost: float | None = None, ring: int | None = None) -> SimulatedJob:
    """The same job with fewer dumps or shorter rings; a larger `lost` removes more of the same dumps."""
    return _simulated(job.request, ring, lost)


def _simulated(request: Request, ring: int | None, lost: float | None, *, active: bool = False) -> SimulatedJob:
    ran = run(request.seed, request.kind, request.world_size, gloo=request.gloo)
    choice = random.Random(f"{request.seed}/{request.kind}/dumps")
    dumps = dump(ran, request.kind, choice, ring=ring, lost=lost, active=active)
    return SimulatedJob(request, dumps.files, dumps.taken_ns, dumps.truth, dumps.description)


def write(job: SimulatedJob, directory: Path) -> None:
    """Write the dumps to `directory`, and truth and description to `<directory>.truth.json`.

    A file's modification time is the time of the dump, which the records themselves do not contain. In about half of
    the jobs, the files are copies made an hour later.
    """
    directory.mkdir(parents=True, exist_ok=True)
    choice = random.Random(f"{job.request.seed}/{job.request.kind}/copied")
    later_ns = choice.choice((0, _COPIED_AFTER_NS))
    for name, content in job.files.items():
        (directory / name).write_bytes(content)
        written_ns = job.taken_ns[name] + later_ns
        os.utime(directory / name, ns=(written_ns, written_ns))
    story = {"seed": job.request.seed, "truth": job.truth.to_json(), "description": job.description}
    directory.with_name(directory.name + ".truth.json").write_text(json.dumps(story, indent=1) + "\n")
