"""Separates logs of several runs and jobs in one folder: the log of one explains nothing about another.

Two logs are from two jobs if they state different job numbers, addresses of rank 0 or world sizes, at whatever times.
They are from two runs if one ends long before the other begins: longer than the clocks and time zones of two hosts can
differ. A log of the kernel belongs to no run: each of its lines counts if it is from the job's time, and if the file is
not named for a host that the job's logs leave out of their lists.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ddx_tools.analysis.log_events.log_event import is_kernel_message
from ddx_tools.analysis.ranks.first_calls import CLOCKS_APART_S
from ddx_tools.analysis.ranks.job_hosts import of_other_hosts
from ddx_tools.analysis.ranks.job_time import JobTime, in_nearest_year
from ddx_tools.model.grouping import gathered
from ddx_tools.parsers.logs.log_lines import file_identity
from ddx_tools.probes.job_log.log_attempts import (
    WAITS,
    Rows,
    began_s,
    mark_before_reports,
    mark_before_steps,
    mark_before_waits,
    mark_outlived,
)
from ddx_tools.probes.job_log.log_facts import LogFacts
from ddx_tools.probes.job_log.nccl_worlds import NCCL_WORLD, highest_rank, nccl_worlds, only_rank

_KINDS = ("job", "run", "MASTER_ADDR", "world size", NCCL_WORLD)
"""What logs state about their job, most telling first: in one job, equal numbers settle it."""
_JOB = re.compile(r"(?:^|[/_.-])(?:slurm|job|pbs|lsf)[-_.]?(?P<job>\d{3,12})(?=[/_.-]|$)", re.IGNORECASE)
_RUN = re.compile(r"(?:^|/)(?P<run>[^/]{1,200})_[a-z0-9_]{8}/attempt_\d{1,6}/\d{1,6}/[^/]{1,80}$")
"""A file in torchrun's `--log-dir`: the folder is named for the run's id, with a random end on each host."""
_RANKS_OF_A_HOST = 8
_SOME_TIME_S = 1_720_000_000.0
"""For logs without any date."""
_EARLIER = "it is from an earlier run than the other logs, so its failures are not judged."


@dataclass(frozen=True)
class LogSpan:
    """The first and last time in a log, in seconds since the epoch on its host's clock, and what it belongs to."""

    source: str
    stated: Mapping[str, str]
    first_s: float | None
    last_s: float | None

    @property
    def job(self) -> str | None:
        """The scheduler's job number."""
        return self.stated.get("job")


@dataclass(frozen=True)
class OtherRuns:
    """What the capture reports about files and lines that are of another run, and columns of `logs` by source."""

    problems: list[str]
    of_log: Mapping[str, dict[str, Any]]


def mark_other_runs(events: list[dict[str, Any]], paths: Mapping[str, str], facts: Mapping[str, LogFacts]) -> OtherRuns:
    """Set `superseded` in the rows of `log_events` from an earlier run, and remove those of another job.

    `paths` and `facts`: the file of each source, and what it says about itself. Logs without times are of this run.
    """
    by_source: dict[str, list[dict[str, Any]]] = {source: [] for source in paths}
    for row in events:
        if row["source"] in paths:
            by_source[row["source"]].append(row)
    jobs = {
        source: rows for source, rows in by_source.items() if not _is_of_kernel(rows, facts.get(source, LogFacts()))
    }
    about_s, year_known = _about(jobs, facts)
    spans = _spans(jobs, paths, facts, about_s)
    timed = [span for span in spans.values() if span.first_s is not None]
    earlier = _earlier(sorted(timed, key=lambda span: span.first_s or 0.0))
    now = [span for span in spans.values() if span.source not in earlier]
    others = _of_other_jobs(now, jobs)
    lists = [each for span in now if span.source not in others for each in facts.get(span.source, LogFacts()).hosts]
    others |= of_other_hosts({source: paths[source] for source in by_source.keys() - jobs.keys()}, lists)
    about_s = max((span.last_s for span in now if span.last_s is not None), default=about_s)
    words = LastWords({source: paths[source] for source in by_source.keys() - others.keys()}, facts)
    sizes = {int(its.stated["world size"]) for its in facts.values() if "world size" in its.stated}
    on_one_host = bool(sizes) and max(sizes) <= _RANKS_OF_A_HOST
    for source, rows in by_source.items():
        for row in rows:
            row["superseded"] = row["superseded"] or source in earlier
        mark_before_reports(rows, about_s)
        mark_outlived(rows, facts.get(source, LogFacts()), words.outside(source), about_s, on_one_host=on_one_host)
    events[:] = [row for row in events if row["source"] not in others]
    mark_before_waits(events, about_s)
    mark_before_steps(events, about_s)
    problems = [f"{path}: {_EARLIER}" for path in sorted(paths[source] for source in earlier)]
    problems += sorted(f"{paths[source]}: {why}" for source, why in others.items())
    left_out = earlier | others.keys()
    problems += _of_other_times(events, paths, _job_time(spans, left_out, year_known=year_known))
    of_log = {}
    for source, rows in by_source.items():
        span = spans.get(source)
        of_log[source] = {
            "rank": only_rank(paths[source], rows),
            "left_out": source in left_out,
            "first_s": span.first_s if span else None,
            "last_s": span.last_s if span else None,
            "year_known": year_known,
        }
    return OtherRuns(problems, of_log)


class LastWords:
    """The time of each rank's last words, and of its last ones in another log than that."""

    def __init__(self, paths: Mapping[str, str], facts: Mapping[str, LogFacts]) -> None:
        self._latest: dict[int, list[tuple[float, str]]] = {}
        for source, path in paths.items():
            named = file_identity(path).rank
            for rank, time_s in facts.get(source, LogFacts()).spoke_s.items():
                speaker = named if rank is None else rank
                if speaker is not None:
                    both = [*self._latest.get(speaker, ()), (time_s, source)]
                    self._latest[speaker] = sorted(both, reverse=True)[:2]

    def outside(self, source: str) -> Callable[[int | None], float | None]:
        """A function that returns the time of a rank's last words in logs other than this one."""

        def last(rank: int | None) -> float | None:
            latest = () if rank is None else self._latest.get(rank, ())
            return next((time_s for time_s, other in latest if other != source), None)

        return last


def _is_of_kernel(rows: Rows, facts: LogFacts) -> bool:
    return facts.is_kernel_log or (bool(rows) and all(is_kernel_message(row["kind"], row["code"]) for row in rows))


def _about(jobs: Mapping[str, Rows], facts: Mapping[str, LogFacts]) -> tuple[float, bool]:
    """A time near which logs without a year are taken to be, and whether a log states its year."""
    dated = [row["time_s"] for rows in jobs.values() for row in rows if row["time_s"] is not None]
    own = [facts[source] for source in jobs if source in facts]
    dated += [time_s for its in own for time_s in (its.first_s, its.last_s) if time_s is not None]
    if dated:
        return max(dated), True
    undated = (its.last_in_year_s for its in own if its.last_in_year_s is not None)
    return next(undated, _SOME_TIME_S), False


def _job_time(spans: Mapping[str, LogSpan], left_out: set[str], *, year_known: bool) -> JobTime | None:
    own = [span for source, span in spans.items() if source not in left_out]
    firsts = [span.first_s for span in own if span.first_s is not None]
    lasts = [span.last_s for span in own if span.last_s is not None]
    return JobTime(min(firsts), max(lasts), year_known) if firsts and lasts else None


def _of_other_times(events: Rows, paths: Mapping[str, str], ran: JobTime | None) -> list[str]:
    """What the capture reports about files with lines of the kernel from before or after the job."""
    found = Counter(
        paths[row["source"]]
        for row in events
        if ran and row["source"] in paths and is_kernel_message(row["kind"], row["code"])
        if not ran.holds(row["time_s"], json.loads(row["details"]).get("in_year_s"))
    )
    return [
        f"{path}: {count} kernel {'message in it is' if count == 1 else 'messages in it are'} from another time than "
        "the job's logs, so not judged."
        for path, count in sorted(found.items())
    ]


def _named_jobs(paths: Mapping[str, str]) -> dict[str, str]:
    """The scheduler's job number of each source: in file names (`slurm-1001.out`) or, if in none, in folders' names."""
    common = posixpath.commonprefix(list(paths.values())).rpartition("/")[0]
    files = {source: path.rpartition("/")[2] for source, path in paths.items()}
    for names in (files, {source: path.removeprefix(common) for source, path in paths.items()}):
        found = {source: list(_JOB.finditer(name))[-1:] for source, name in names.items()}
        if any(found.values()):
            return {source: last["job"] for source, matches in found.items() for last in matches}
    return {}


def _named_runs(
    jobs: Mapping[str, Rows], paths: Mapping[str, str], facts: Mapping[str, LogFacts], about_s: float
) -> dict[str, str]:
    """The id of torchrun's run by source, if the times in their logs show that one run was over before the next."""
    runs = {source: found["run"] for source in jobs if (found := _RUN.search(paths[source]))}
    times = gathered(
        (run, time_s)
        for source, run in runs.items()
        for time_s in _times(jobs[source], facts.get(source, LogFacts()), about_s)
    )
    spans = sorted((min(its), max(its)) for its in times.values())
    apart = all(before[1] < after[0] for before, after in pairwise(spans))
    return runs if apart and times.keys() == {*runs.values()} else {}


def _spans(
    jobs: Mapping[str, Rows], paths: Mapping[str, str], facts: Mapping[str, LogFacts], about_s: float
) -> dict[str, LogSpan]:
    sizes, named, worlds = _believed_sizes(jobs, facts), _named_jobs(paths), nccl_worlds(jobs, paths, facts)
    runs = _named_runs(jobs, paths, facts, about_s)
    spans = {}
    for source, rows in jobs.items():
        its = facts.get(source, LogFacts())
        stated = {kind: value for kind, value in its.stated.items() if kind != "world size" or value in sizes}
        if source in worlds:
            stated[NCCL_WORLD] = worlds[source]
        if file_identity(paths[source]).attempt is not None:  # A launcher may restart a job on other or fewer hosts.
            stated = {kind: value for kind, value in stated.items() if kind == "job"}
        if run := runs.get(source):
            stated["run"] = run
        if job := named.get(source):
            stated["job"] = job
        times = _times(rows, its, about_s)
        spans[source] = LogSpan(source, stated, min(times, default=None), max(times, default=None))
    return spans


def _times(rows: Rows, facts: LogFacts, about_s: float) -> list[float]:
    """The times in a log, near `about_s` if they have no year, and those when waits began that it reports."""
    times = [row["time_s"] for row in rows] + [facts.first_s, facts.last_s]
    times += [began_s(row, about_s) for row in rows if row["kind"] in WAITS]
    undated = [one for one in (facts.first_in_year_s, facts.last_in_year_s) if one is not None]
    times += [in_nearest_year(one, about_s) for one in undated]
    return [time_s for time_s in times if time_s is not None]


# --- runs at different times


def _earlier(spans: Sequence[LogSpan]) -> set[str]:
    """The sources of runs that were over when the last one began; the spans are sorted by start."""
    earlier: set[str] = set()
    runs: list[LogSpan] = []
    for span in spans:
        if runs and _is_another_run(runs, span):
            earlier |= {one.source for one in runs}
            runs = []
        runs.append(span)
    return earlier


def _is_another_run(runs: Sequence[LogSpan], span: LogSpan) -> bool:
    apart_s = (span.first_s or 0.0) - max(one.last_s or 0.0 for one in runs)
    other_job = span.job is not None and all(one.job not in (None, span.job) for one in runs)
    return apart_s > CLOCKS_APART_S or (other_job and apart_s > 0)


# --- jobs at the same time


def _believed_sizes(by_source: Mapping[str, Rows], facts: Mapping[str, LogFacts]) -> set[str]:
    """The world sizes that no log with higher ranks states: others are sizes of a part of the job."""
    sizes: dict[str, bool] = {}
    for source, its in facts.items():
        if size := its.stated.get("world size"):
            sizes[size] = sizes.get(size, True) and highest_rank(by_source.get(source, ())) < int(size)
    return {size for size, believed in sizes.items() if believed}


def _of_other_jobs(spans: Sequence[LogSpan], by_source: Mapping[str, Rows]) -> dict[str, str]:
    """The sources that state another job than newer logs do, each with the reason in words."""
    found = {}
    stated: dict[str, str] = {}
    highest = -1
    for span in sorted(spans, key=_newest, reverse=True):
        own = highest_rank(by_source[span.source])
        if why := _difference(stated, highest, span.stated, own):
            found[span.source] = (
                f"it is from another job than the newest log ({why}), so it was not combined with that. To judge it, "
                "pass only the files of its job."
            )
        else:
            stated = {**span.stated, **stated}
            highest = max(highest, own)
    return found


def _newest(span: LogSpan) -> tuple[float, int, str]:
    number = span.job or ""
    return span.last_s or 0.0, int(number) if number.isdigit() else 0, span.source


def _difference(stated: Mapping[str, str], highest: int, others: Mapping[str, str], others_highest: int) -> str | None:
    """Why two jobs differ, from what logs state and the highest rank in them; None if nothing shows that they do."""
    kinds = [kind for kind in _KINDS if kind in stated and kind in others]
    if kinds[:1] == ["job"] and stated["job"] == others["job"]:
        return None
    for kind in kinds if kinds[:1] != [NCCL_WORLD] or len(kinds) == 1 else ():
        if stated[kind] != others[kind]:
            return f"{kind} {others[kind]}, not {stated[kind]}"
    if "world size" in stated and others_highest >= int(stated["world size"]):
        return f"rank {others_highest}, in a world of {stated['world size']}"
    if "world size" in others and highest >= int(others["world size"]):
        return f"world size {others['world size']}, with a rank {highest}"
    return None
