"""Show a watched job: a grid on a terminal, elsewhere a line whenever something has changed, and now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ddx_server.render.safe_text import safe
from ddx_server.watch.keys import pressed_keys
from ddx_server.watch.live import WatchedJob
from ddx_server.watch.page import Pages
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
    said, said_s = [""], 0.0
    pages = Pages(job.rows[0].pid)
    with closing(pages), pressed_keys(console.is_terminal) as keys, Live(console=console, auto_refresh=False) as live:
        for _ in range(most_looks) if most_looks is not None else count():
            job.look()
            doings, now = [row.doing for row in job.rows], time.monotonic()
            if console.is_terminal:
                _show(job, pages, live)
            elif doings != said or now - said_s >= _LINE_EVERY_S:
                console.print(safe(_line(job), limit=2000), soft_wrap=True)
                said, said_s = doings, now
            if job.is_over:
                return
            while (left_s := now + interval_s - time.monotonic()) > 0:
                pages.press(keys(left_s))
                if pages.is_over:
                    return
                if console.is_terminal:
                    _show(job, pages, live)


def _show(job: WatchedJob, pages: Pages, live: Live) -> None:
    shown = _grid(job, pages.hint) if pages.rank is None else pages.panel(live.console.height - 3)
    live.update(shown, refresh=True)


def _line(job: WatchedJob) -> str:
    step = f"step {job.step}; " if job.step is not None else ""
    return f"{time.strftime('%H:%M:%S')}  {step}{summary(job.rows)}"


def _grid(job: WatchedJob, hint: str) -> Table:
    step = f"step {job.step}" if job.step is not None else None
    unknown = "" if job.run_dir else "\nwithout `ddx run` there is no telling who waits for whom"
    table = Table(title=step, caption=hint + unknown)
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
