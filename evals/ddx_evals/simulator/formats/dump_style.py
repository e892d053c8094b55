"""The format of a job's dumps: version, backend, encoding, file names."""

from __future__ import annotations

import random
from dataclasses import dataclass

VERSIONS = ("2.1", "2.4", "2.9", "2.10", "2.11")


@dataclass(frozen=True)
class Format:
    """The format of a job's dumps."""

    version: str = "2.10"
    backend: str = "nccl"
    """nccl, nccl2, gloo, xccl or ncclx: the first part of every profiling name."""
    as_json: bool = False
    frames: bool = True
    file_name: str = "nccl_trace_rank_{rank}"
    """With `{rank}` and, if wanted, `{host}`."""
    timeout_ms: int = 600_000
    header: bool = False
    """Whether an agent in the process wrote the dump, with a header that has time, host and groups."""

    @property
    def gloo(self) -> bool:
        """Whether this is Gloo: its records lack groups and times, and it has no watchdog to dump them."""
        return self.backend == "gloo"

    @property
    def can_time(self) -> bool:
        """Whether the backend may record start events: Gloo and XCCL do not."""
        return self.backend not in ("gloo", "xccl")

    @classmethod
    def chosen(cls, choice: random.Random, *, gloo: bool) -> Format:
        """A random format that occurs in real jobs."""
        as_json = choice.random() < 0.1
        by_agent = "rank_{rank}.json" if as_json else "rank_{rank}.pkl"
        if gloo:
            return cls("2.10", "gloo", as_json, True, by_agent, 1_800_000, header=True)
        backend = choice.choices(("nccl", "nccl2", "xccl", "ncclx"), (12, 1, 1, 1))[0]
        frames = choice.random() < 0.95
        timeout_ms = choice.choice((5, 10, 10, 10, 30)) * 60_000
        if choice.random() < 0.25:
            return cls(choice.choice(VERSIONS), backend, as_json, frames, by_agent, timeout_ms, header=True)
        stem = choice.choice(
            ("nccl_trace_rank_{rank}", "comm_lib_trace_rank_{rank}", "{host}_nccl_trace_rank_{rank}", "_dump_{rank}")
        )
        name = stem + ".json" if as_json else stem
        return cls(choice.choice(VERSIONS), backend, as_json, frames, name, timeout_ms)

    def since(self, version: str) -> bool:
        """Whether this format is `version` or later."""
        return VERSIONS.index(self.version) >= VERSIONS.index(version)
