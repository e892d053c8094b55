"""Files as NCCL Inspector writes them, of jobs that tests make up: *constructed*, after the source.

Key order and form are those of inspector_json.cc and json.cc in plugins/profiler/inspector of NCCL 2.30.7 (5067397c),
and of ext-profiler/inspector/inspector.cc of 2.28.3 (f1308997).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BEGIN_S = 1_764_000_000.0
_MOST_US = 1_000_000


@dataclass
class InspectedJob:
    """A job with some ranks per host, whose communicators finish one operation after the other."""

    ranks: int
    communicators: Mapping[str, Sequence[int]]
    """Hash to global ranks, in the order of the communicator."""
    per_host: int = 4
    writes_all: bool = True
    """As 2.30: every operation. Otherwise as 2.28: the last one of each communicator and second."""
    clocks_s: Mapping[int, float] = field(default_factory=dict)
    """How far the clock of a rank's host is ahead."""
    _finished: dict[int, list[tuple[float, str, str, int]]] = field(default_factory=dict)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def host(self, rank: int) -> str:
        return f"node{rank // self.per_host + 1}"

    def pid(self, rank: int) -> int:
        return 41_000 + rank

    def finish(self, communicator: str, operation: str, second: float, but: Sequence[int] = ()) -> None:
        """All members finish the next operation, except these."""
        number = self._numbers.get((communicator, operation), -1) + 1
        self._numbers[communicator, operation] = number
        for rank in self.communicators[communicator]:
            if rank not in but:
                self._finished.setdefault(rank, []).append((second, communicator, operation, number))

    def text(self, rank: int, until_s: float = float("inf")) -> str:
        """A rank's file, as it was at some second."""
        lines = [each for each in self._finished.get(rank, []) if each[0] <= until_s]
        if not self.writes_all:
            lines = list({(int(second), name): each for each in lines for second, name in [each[:2]]}.values())
        return "".join(f"{self._line(rank, *each)}\n" for each in lines)

    def write(self, folder: Path, until_s: Callable[[int], float] = lambda _: float("inf")) -> str:
        """Write every rank's file, as it was at a second that may depend on the rank; return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.ranks):
            (folder / f"{self.host(rank)}-pid{self.pid(rank)}.log").write_text(self.text(rank, until_s(rank)))
        return str(folder)

    def _line(self, rank: int, second: float, name: str, operation: str, number: int) -> str:
        members = self.communicators[name]
        took_us = 20_000 + 37 * number % 900
        bandwidth = 64e6 / took_us / 1e3
        header = {"id": f"0x{name}"} | ({"comm_name": "unknown"} if self.writes_all else {})
        line = {
            "header": header | {"rank": list(members).index(rank), "n_ranks": len(members), "nnodes": 2},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": int((BEGIN_S + second + self.clocks_s.get(rank, 0.0)) * 1e6),
                "hostname": self.host(rank),
                "pid": self.pid(rank),
            },
            "coll_perf": {
                "coll": operation,
                "coll_sn": number,
                "coll_msg_size_bytes": 64_000_000,
                "coll_exec_time_us": took_us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(bandwidth, 6),
                "coll_busbw_gbs": round(bandwidth, 6),
            },
        }
        return json.dumps(line, separators=(",", ":"))


def weight_sync(stopped: Sequence[int] = (), seconds: int = 400, **given: object) -> InspectedJob:
    """A trainer (rank 0) broadcasts weights to two engines of four ranks each minute; the engines reduce every second.

    `stopped`: these ranks do not finish the broadcast of second 180; from then on, their engine does nothing.
    """
    groups = {"aa": range(9), "b1": range(1, 5), "b2": range(5, 9)}
    job = InspectedJob(ranks=9, communicators=groups, **given)  # type: ignore[arg-type]
    for second in range(seconds):
        if second % 60 == 0 and (second <= 180 or not stopped):
            job.finish("aa", "Broadcast", second, stopped if second == 180 else ())
        for engine in ("b1", "b2"):
            if second < 180 or not set(stopped) & set(groups[engine]):
                job.finish(engine, "AllReduce", second + 0.5)
    return job
