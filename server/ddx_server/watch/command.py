"""Shows a watched job: a grid on a terminal; otherwise a line whenever something changes, and occasionally between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count
from typing import BinaryIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ddx_server.render.safe_text import safe
from ddx_server.watch.hosts import WatchedHosts, line_of
from ddx_server.watch.keys import pressed_keys
from ddx_server.watch.live import WatchedJob
from ddx_server.watch.page import Pages
from ddx_server.watch.ranks import RankRow, alike, summary
from ddx_tools.investigation.many_hosts.node import jobs_meant
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.errors import UsageError
from ddx_tools.parsers.launch.launchers import find_jobs
from ddx_tools.sources.cluster.targets import Reach, folded
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.job_target import select_job

_MOST_ROWS = 40
_LINE_EVERY_S = 30.0
_STYLES = {"moves": "green", "computes": "green", "gone": "bold red", "stopped": "bold red", "waits": "yellow"}


Watched = WatchedJob | WatchedHosts


def watch_command(
    target: Sequence[str],
    interval_s: float,
    console: Console,
    most_looks: int | None = None,
    reach: Reach | None = None,
) -> None:
    """Watch a job on the hosts of `reach`, or else here, until it is over or `most_looks` samples were taken.

    `target` is a pid of the job (default: the only job here). Raises UsageError if there is no such job.
    """
    if reach and target:
        raise UsageError(
            "a pid means nothing on other hosts", "Omit it; if there are several jobs, select one with --slurm."
        )
    said, said_s = [""], 0.0
    with (
        closing(WatchedHosts(reach, interval_s) if reach else _job_here(target)) as job,
        closing(Pages(job.page)) as pages,
        pressed_keys(console.is_terminal) as keys,
        Live(console=console, auto_refresh=False) as live,
    ):
        for _ in range(most_looks) if most_looks is not None else count():
            job.look()
            doings, now = [row.doing for row in job.rows] + job.notes, time.monotonic()
            if console.is_terminal:
                _show(job, pages, live)
            elif doings and (doings != said or now - said_s >= _LINE_EVERY_S):
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


def tell_rows(job: str, interval_s: float, out: BinaryIO) -> None:
    """Serve one host of many: write a line of rows per sample, until the job is over or the reader is gone."""
    watched = _job_here([], job, among_others=True)
    while not watched.is_over:
        watched.look()
        out.write(line_of(watched.step, watched.rows, watched.notes, tells_waits=watched.tells_waits))
        out.flush()
        time.sleep(interval_s)


def _job_here(target: Sequence[str], wanted: str = "", *, among_others: bool = False) -> WatchedJob:
    found = find_jobs(json.loads(LocalHost().processes().data))
    job = WatchedJob(select_job(jobs_meant(found, wanted), target), among_others=among_others)
    if not job.rows:
        raise UsageError("no rank of that job runs on this host", "`ddx jobs` lists the jobs here.")
    return job


def _show(job: Watched, pages: Pages, live: Live) -> None:
    shown = _grid(job, pages.hint) if pages.rank is None else pages.panel(live.console.height - 3)
    live.update(shown, refresh=True)


def _line(job: Watched) -> str:
    step = f"step {job.step}; " if job.step is not None else ""
    return f"{time.strftime('%H:%M:%S')}  {step}{'; '.join(filter(None, (summary(job.rows), *job.notes)))}"


def _grid(job: Watched, hint: str) -> Table:
    step = f"step {job.step}" if job.step is not None else None
    unknown = "" if job.tells_waits else "it is unknown who waits for whom, since the job was not started by `ddx run`"
    caption = "\n".join(filter(None, (hint, unknown if job.rows else "waiting for the first answer", *job.notes)))
    table = Table(title=step, caption=safe(caption, limit=2000))
    hosts = ["host"] if any(row.host for row in job.rows) else []
    for heading in ("rank", *hosts, "does", "last moved", "memory", "GPU"):
        table.add_column(heading, justify="left" if heading in ("rank", "host", "does") else "right")
    for doing, rows in _grouped(job.rows):
        style = _STYLES.get(doing.split(" ")[0].rstrip(","), "")
        ages = [row.age_s for row in rows if row.age_s is not None]
        table.add_row(
            safe(rank_list([row.rank for row in rows]).removeprefix("ranks ").removeprefix("rank ")),
            *([safe(folded({row.host for row in rows}))] if hosts else []),
            safe(doing, style),
            f"{max(ages):.0f} s ago" if ages else "",
            _most(row.rss_bytes for row in rows),
            _most(row.gpu_bytes for row in rows),
        )
    return table


def _grouped(rows: Sequence[RankRow]) -> list[tuple[str, list[RankRow]]]:
    """Each rank by itself; if there are many, ranks in the same state together, smallest groups first."""
    return alike(rows) if len(rows) > _MOST_ROWS else [(row.doing, [row]) for row in rows]


def _most(sizes: Iterable[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return f"{max(known) / (1 << 30):.1f} GiB" if known else ""
