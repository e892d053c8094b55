"""Show a watched job: a grid on a terminal, elsewhere a line whenever something has changed, and now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ddx_server.render.safe_text import safe
from ddx_server.watch.live import WatchedJob
from ddx_server.watch.ranks import RankRow, summary
from ddx_tools.errors import UsageError
from ddx_tools.job_target import select_job
from ddx_tools.model import rank_list
from ddx_tools.parsers.launchers.launchers import find_jobs
from ddx_tools.sources.hosts.local import LocalHost

_MOST_ROWS = 40
_LINE_EVERY_S = 30.0
_STYLES = {"moves": "green", "computes": "green", "gone": "bold red", "stopped": "bold red", "waits": "yellow"}


def watch_command(target: Sequence[str], interval_s: float, console: Console, most_looks: int | None = None) -> None:
    """Look at a job (a pid of it; none: the only one here) until it is over, or `most_looks` were taken.

    Raises UsageError if there is no such job.
    """
    job = WatchedJob(select_job(find_jobs(json.loads(LocalHost().processes().data)), target))
    if not job.rows:
        raise UsageError("no rank of that job runs on this host", "`ddx jobs` shows what does.")
    looks, said, said_s = 0, [""], 0.0
    with Live(console=console, auto_refresh=False) as live:
        while most_looks is None or looks < most_looks:
            job.look()
            looks += 1
            doings, now = [row.doing for row in job.rows], time.monotonic()
            if console.is_terminal:
                live.update(_grid(job), refresh=True)
            elif doings != said or now - said_s >= _LINE_EVERY_S:
                console.print(safe(_line(job), limit=2000), soft_wrap=True)
                said, said_s = doings, now
            if job.is_over:
                return
            time.sleep(interval_s)


def _line(job: WatchedJob) -> str:
    step = f"step {job.step}; " if job.step is not None else ""
    return f"{time.strftime('%H:%M:%S')}  {step}{summary(job.rows)}"


def _grid(job: WatchedJob) -> Table:
    step = f"step {job.step}" if job.step is not None else None
    table = Table(
        title=step, caption=None if job.run_dir else "without `ddx run` there is no telling who waits for whom"
    )
    for heading in ("rank", "does", "last moved", "memory", "GPU"):
        table.add_column(heading, justify="left" if heading in ("rank", "does") else "right")
    for rows in _grouped(job.rows):
        first = rows[0]
        style = _STYLES.get(first.doing.split(" ")[0].rstrip(","), "")
        ages = [row.age_s for row in rows if row.age_s is not None]
        table.add_row(
            safe(rank_list([row.rank for row in rows]).removeprefix("ranks ").removeprefix("rank ")),
            safe(first.doing, style),
            f"{max(ages):.0f} s ago" if ages else "",
            _most(row.rss_bytes for row in rows),
            _most(row.gpu_bytes for row in rows),
        )
    return table


def _grouped(rows: Sequence[RankRow]) -> list[list[RankRow]]:
    """Each rank by itself; of many, those that do the same together, the fewest first."""
    if len(rows) <= _MOST_ROWS:
        return [[row] for row in rows]
    groups: dict[str, list[RankRow]] = {}
    for row in rows:
        groups.setdefault(row.doing, []).append(row)
    return sorted(groups.values(), key=len)


def _most(sizes: Iterable[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return f"{max(known) / (1 << 30):.1f} GiB" if known else ""
