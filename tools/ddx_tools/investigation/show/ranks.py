"""What is known about one rank, and about all ranks in a few lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ddx_tools.analysis.collectives.records.entry_words import entry_words
from ddx_tools.analysis.collectives.stacks.divergence import ProgramTexts
from ddx_tools.analysis.collectives.stacks.main_threads import looks_of, rank_views
from ddx_tools.analysis.collectives.stacks.point_to_point import with_transfers
from ddx_tools.analysis.ranks.process_words import environment_words, process_words
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.addresses import Names
from ddx_tools.investigation.show.measured_rank import measured
from ddx_tools.investigation.show.records import entries
from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.errors import UsageError
from ddx_tools.model.grouping import gathered

_MOST_CALLS, _MOST_GROUPS, _MOST_EVENTS, _MOST_THREADS, _MOST_FRAMES = 3, 6, 8, 12, 24
_OURS = "ddx-rank-agent"
_KNOWN = {
    "process": "SELECT rank FROM ranks WHERE role = 'rank'",
    "stack": "SELECT rank FROM stack_threads WHERE role = 'rank'",
    "flight record": "SELECT rank FROM fr_dumps",
    "line in a log": "SELECT rank FROM log_events",
    "profiler trace": "SELECT rank FROM trace_ranks",
    "memory report": "SELECT rank FROM memory_series",
}


def all_ranks(store: Store) -> list[str]:
    """Lines that say which ranks have a process, a stack, a record or a log line, and which do not."""
    known = {what: _distinct(store, query) for what, query in _KNOWN.items()}
    size = max((row["size"] or 0 for row in store.query(_SIZE)), default=0)
    everybody = set(range(size)).union(*known.values())
    lines = [f"{len(everybody)} ranks" + (f" of {size}" if size else "")]
    for what, ranks in known.items():
        if ranks:
            without = everybody - ranks
            told = f"{what}: {rank_list(ranks)}"
            lines.append(told + (f"; no {what} for {rank_list(without)}" if without else ""))
    lines += [environment_words(row) for row in store.query(_FIRST)]
    lines += [f"launcher on {row['host']}: {row['command'][:200]}" for row in store.query(_LAUNCHERS)]
    lines += [f"no answer from {row['host']}: {row['reason']}" for row in store.query(_UNANSWERED)]
    lines += [f"clock of {row['host']}: {row['low']} to {row['high']} s ahead" for row in store.query(_CLOCKS)]
    lines += [f"not readable: rank {row['rank']} pid {row['pid']}: {row['reason']}" for row in store.query(_UNREAD)]
    return lines


_SIZE = "SELECT max(world_size) AS size FROM ranks UNION ALL SELECT max(world_size) FROM fr_dumps"
_FIRST = "SELECT * FROM ranks WHERE role = 'rank' ORDER BY host, rank LIMIT 8"
_LAUNCHERS = (
    "SELECT host, command FROM ranks WHERE role = 'launcher' AND command IS NOT NULL ORDER BY host, pid LIMIT 8"
)
_UNANSWERED = """
SELECT coalesce(host, target) AS host, reason FROM asked_hosts WHERE state <> 'answered' ORDER BY target LIMIT 8
"""
_CLOCKS = """
SELECT coalesce(host, target) AS host, clock_low_s AS low, clock_high_s AS high FROM asked_hosts
WHERE clock_low_s > 0 OR clock_high_s < 0 ORDER BY target LIMIT 8
"""
_UNREAD = "SELECT rank, pid, reason FROM unread ORDER BY rank LIMIT 8"


def _distinct(store: Store, query: str) -> set[int]:
    return {row["rank"] for row in store.query(f"SELECT DISTINCT rank FROM ({query}) WHERE rank IS NOT NULL")}


def one_rank(store: Store, rank: int, names: Names) -> list[str]:
    """Lines about one rank: processes, stacks, last calls, log events, measurements.

    Raises UsageError if nothing is known.
    """
    seen = [*_processes(store, rank), *_stacks(store, rank), *_calls(store, rank)]
    lines = [*seen, *_events(store, rank, names), *measured(store, rank)]
    if not lines:
        known = set().union(*(_distinct(store, query) for query in _KNOWN.values()))
        told = f"Known: {rank_list(known)}." if known else "No rank is known here."
        raise UsageError(f"nothing is known about rank {rank}", told)
    return lines


def _processes(store: Store, rank: int) -> Iterator[str]:
    for row in store.query("SELECT * FROM ranks WHERE rank = ? AND role IN ('rank', 'gone') ORDER BY pid", [rank]):
        seat = f" local rank {row['local_rank']}" if row["local_rank"] is not None else ""
        yield f"process on {row['host']}{seat}"
        yield f"  {process_words(row)}"
        yield f"  {environment_words(row)}"


def _stacks(store: Store, rank: int) -> Iterator[str]:
    views = with_transfers([view for view in store.derived(rank_views) if view.rank == rank], ProgramTexts(store))
    for view in views:
        waits = f", has not moved for {view.wait_s:g} s" if view.wait_s else ""
        yield f"main thread: {view.doing}{waits}"
        place = view.standing
        yield f"  {place}"
        yield from (f"  in an earlier sample {look}" for look in looks_of(store, rank) if look != place)
    threads = store.query(_THREADS, [rank])
    last = {row["pid"]: row["snapshot"] for row in threads}
    shown = [row for row in threads if row["snapshot"] == last[row["pid"]] and row["thread"] != _OURS]
    for row in shown[:_MOST_THREADS]:
        of = "thread" if row["role"] == "rank" else f"{row['role']} {row['pid']}, thread"
        yield f"{of} {row['thread'] or row['tid']}{' (main)' if row['is_main'] else ''}: {row['activity']}"
        for frame in store.query(_FRAMES, [row["host"], row["pid"], row["snapshot"], row["tid"]]):
            yield f"  {_frame(frame)}"


def _frame(frame: dict[str, Any]) -> str:
    """A frame of the program as its place and text, a library frame as py-spy prints it."""
    if not frame["is_user"]:
        return f"{frame['function']} ({frame['file']}:{frame['line']})"
    code = f": {frame['code'].strip()}" if frame["code"] else ""
    return f"{frame['file']}:{frame['line']} {frame['function']}{code}"


_THREADS = """
SELECT * FROM stack_threads WHERE rank = ?
ORDER BY role <> 'rank', pid, snapshot, NOT is_main, user_file IS NULL, tid
"""
_FRAMES = f"""
SELECT file, line, function, code, is_user FROM stack_frames WHERE host = ? AND pid = ? AND snapshot = ? AND tid = ?
ORDER BY depth LIMIT {_MOST_FRAMES}
"""


def _calls(store: Store, rank: int) -> Iterator[str]:
    """The last calls in each group: the last finished one, then the pending ones."""
    by_group = gathered((row["label"], row) for row in entries(store, "rank = ?", [rank]))
    for label, calls in list(by_group.items())[:_MOST_GROUPS]:
        yield f"recorded in {label}, the last of {len(calls)}"
        for row in _telling(calls):
            yield f"  {entry_words(row)}"


def _telling(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last finished call, and the pending ones, oldest first."""
    ordered = sorted(calls, key=lambda row: (row["record_id"] is None, row["record_id"]))
    pending = [row for row in ordered if not row["done"]]
    done = [row for row in ordered if row["done"]]
    return [*done[-1:], *pending[:_MOST_CALLS], *(pending[-1:] if len(pending) > _MOST_CALLS else [])]


def _events(store: Store, rank: int, names: Names) -> Iterator[str]:
    """Log events about the rank, each line once: a launcher and the rank itself may both have logged it."""
    rows = store.query(
        "SELECT kind, code, text, details, source, source_line FROM log_events WHERE rank = ? AND kind <> 'value' "
        "ORDER BY kind = 'step', source, source_line DESC",
        [rank],
    )
    once = {(row["kind"], row["text"]): row for row in reversed(rows)}
    for row in [*reversed(once.values())][:_MOST_EVENTS]:
        where = f"  [{names.words(row['source'], row['source_line'])}]" if row["source"] else ""
        quote = json.loads(row["details"] or "{}").get("quote")
        said = quote if isinstance(quote, str) else row["text"]
        yield f"printed: {(said or row['code'] or row['kind'])[:400]}{where}"
