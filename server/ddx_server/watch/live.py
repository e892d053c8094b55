"""Samples all ranks of one live job on this host at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from ddx_server.run.printed_progress import PrintedProgress
from ddx_server.watch.polled_ras import PolledRas
from ddx_server.watch.ranks import RankLook, RankRow
from ddx_tools.model.errors import DdxError
from ddx_tools.parsers.launch.launchers import Job
from ddx_tools.sources.hosts.rank_agent import ask, parse_answer

_ANSWER_S = 2.0
_PARALLEL = 16


class WatchedJob:
    """A watched job, with the latest state of its ranks."""

    def __init__(self, job: Job, *, among_others: bool = False) -> None:
        self.run_dir = job.run_dir
        self._processes = {
            member.rank: psutil.Process(member.pid)
            for member in job.live
            if member.rank is not None and member.pid is not None and psutil.pid_exists(member.pid)
        }
        self.rows = [RankRow(rank, process.pid) for rank, process in sorted(self._processes.items())]
        self._printed = PrintedProgress(Path(job.run_dir) / "launcher.log") if job.run_dir else None
        self._pool = ThreadPoolExecutor(_PARALLEL)
        self._ras = PolledRas(job, among_others=among_others)

    @property
    def tells_waits(self) -> bool:
        """Whether `ddx run` started the job, so that its ranks report their collective."""
        return self.run_dir is not None

    @property
    def notes(self) -> list[str]:
        """What NCCL's RAS says about ranks that are behind, on any host."""
        return self._ras.notes

    @property
    def step(self) -> int | None:
        """The last printed step, if `ddx run` keeps the job's output."""
        return self._printed.last_step if self._printed else None

    @property
    def is_over(self) -> bool:
        """Whether all ranks are gone."""
        return all(row.doing == "gone" for row in self.rows)

    def look(self) -> None:
        """Take a sample of every rank."""
        if self._printed:
            self._printed.look()
        self._ras.refresh()
        looks = list(self._pool.map(self._look_at, self.rows))
        now = time.monotonic()
        for row, seen in zip(self.rows, looks, strict=True):
            row.look(seen, now)

    def page(self, rank: int) -> list[str]:
        """The output of `ddx show rank N`. Raises DdxError."""
        from ddx_tools.investigation.lookup import look

        return [line for _, line in look(["rank", str(rank)], [str(self.rows[0].pid)]).lines]

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _look_at(self, row: RankRow) -> RankLook:
        process = self._processes[row.rank]
        try:
            with process.oneshot():
                state, share = str(process.status()), process.cpu_percent() / 100
                rss_bytes = process.memory_info().rss
            alive = state not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.Error:
            return RankLook(row.rank, row.pid, alive=False)
        status, memory = (self._ask(row, op) if alive else None for op in ("status", "memory"))
        used = [gpu.get("reserved_bytes.all.current") or 0 for gpu in ((memory or {}).get("cuda") or {}).values()]
        return RankLook(row.rank, row.pid, alive, state, share, status, rss_bytes, sum(used) if used else None)

    def _ask(self, row: RankRow, operation: str) -> dict[str, Any] | None:
        if self.run_dir is None:
            return None
        try:
            return parse_answer(ask(self.run_dir, row.rank, row.pid, {"op": operation}, _ANSWER_S))[0]
        except DdxError:
            return None
