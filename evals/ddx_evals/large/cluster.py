"""The machines of a simulated job: names, addresses, process ids and clocks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from ddx_evals.simulator.dump_format import host
from ddx_evals.simulator.training.mesh import RANKS_A_HOST

_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_FIRST_ADDRESS = 11


@dataclass(frozen=True)
class Cluster:
    """The hosts of a job. `skews_ns[rank]` is how far the clock of a rank's host is ahead of true time."""

    skews_ns: Sequence[int]

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(len(self.skews_ns))

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts, in rank order."""
        return [host(rank) for rank in self.ranks[::RANKS_A_HOST]]

    def on(self, name: str) -> range:
        """The ranks of a host."""
        first = self.hosts.index(name) * RANKS_A_HOST
        return self.ranks[first : first + RANKS_A_HOST]

    def pid(self, rank: int) -> int:
        """The process id of a rank on its host."""
        return 21_000 + 37 * (rank // RANKS_A_HOST) + 61 + rank % RANKS_A_HOST

    def filled(self, text: str, rank: int, at_ns: int, step: int = 0) -> str:
        """Fill a text with the names of one rank, its host and a time on its clock."""
        local_ns = at_ns + self.skews_ns[rank]
        moment = dt.datetime.fromtimestamp(local_ns // 10**9, dt.UTC)
        node = rank // RANKS_A_HOST
        return Template(text).safe_substitute(
            rank=rank,
            local=rank % RANKS_A_HOST,
            host=host(rank),
            node=node,
            ip=f"10.4.{(node + _FIRST_ADDRESS) // 250}.{(node + _FIRST_ADDRESS) % 250}",
            pid=self.pid(rank),
            bus=_BUSES[rank % RANKS_A_HOST],
            world=len(self.skews_ns),
            step=step,
            day=f"{moment:%Y-%m-%d}",
            date=f"{moment:%Y-%m-%d %H:%M:%S}",
            iso=f"{moment:%Y-%m-%dT%H:%M:%S}",
            underscored=f"{moment:%Y-%m-%d_%H:%M:%S}",
            clock=f"{moment:%m%d %H:%M:%S}.{local_ns % 10**9:09d}",
        )
