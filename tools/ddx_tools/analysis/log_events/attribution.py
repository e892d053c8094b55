"""Finds the rank behind each log event by joining rows that do not state a rank with rows that do.

In order: by process id; by local rank, through a launcher that names both; by the process index of mp.spawn; by Slurm
task, if each task is one rank; and last by elimination: one unlabelled failure, and one rank that ended that way
without a message of its own.
Every join records how it was made. Events that cannot be joined stay without a rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ddx_tools.analysis.log_events.log_event import LogEvent, short_name
from ddx_tools.model.diagnosis import Finding, Location, Severity, rank_list
from ddx_tools.model.grouping import gathered
from ddx_tools.model.signals import signal_name


def identify(events: list[LogEvent], processes: list[dict[str, Any]], hosts: Mapping[int, str]) -> None:
    """Attribute log events to ranks: set `ranks` and `joined` of each event that names no rank itself.

    `processes`: rows of the `ranks` table from a live job. `hosts`: maps each rank to its host, as far as NCCL's logs
    show it.
    """
    _by_pid(events, processes)
    _by_local_rank(events, processes)
    _by_process_index(events)
    _by_task(events, hosts)
    _within_tracebacks(events)
    _what_is_left(events)
    _within_tracebacks(events)


def _by_pid(events: list[LogEvent], processes: list[dict[str, Any]]) -> None:
    """Join by process id, which is unique only per host; submitted files do not name their host."""
    known = [(row["host"], row["pid"], row["rank"]) for row in processes if row["role"] == "rank"]
    known += [(e.row["host"], e.row["pid"], e.row["rank"]) for e in events]
    owners: dict[int, set[tuple[str | None, int]]] = defaultdict(set)
    for host, pid, rank in known:
        if pid is not None and rank is not None:
            owners[pid].add((host, rank))
    for event in events:
        host, pid = event.row["host"], event.row["pid"]
        if event.ranks or pid is None:
            continue
        ranks = {rank for owner, rank in owners.get(pid, ()) if None in (owner, host) or owner == host}
        if len(ranks) == 1:
            _join(event, list(ranks), "process id")


def _by_local_rank(events: list[LogEvent], processes: list[dict[str, Any]]) -> None:
    """Join by local rank: global = local + offset, if a launcher's summary, a label or a live process gives both."""
    by_source: dict[tuple[str, str | None], set[int]] = defaultdict(set)
    by_host: dict[str | None, set[int]] = defaultdict(set)
    for event in events:
        local_rank = event.details.get("local_rank")
        if local_rank is not None and event.row["rank"] is not None:
            by_source[event.row["source"], event.row["host"]].add(event.row["rank"] - local_rank)
            by_host[event.row["host"]].add(event.row["rank"] - local_rank)
    for row in processes:
        if row["rank"] is not None and row["local_rank"] is not None:
            by_host[row["host"]].add(row["rank"] - row["local_rank"])
    everywhere = set().union(*by_host.values())
    one_host = len({event.row["host"] for event in events} - {None}) <= 1
    for event in events:
        local_rank = event.details.get("local_rank")
        if event.ranks or local_rank is None:
            continue
        offsets = (
            by_source.get((event.row["source"], event.row["host"])) or by_host.get(event.row["host"]) or everywhere
        )
        if len(offsets) == 1:
            _join(event, [local_rank + next(iter(offsets))], "local rank")
        elif not offsets and one_host:
            _join(event, [local_rank], "local rank, as if the job had one host")


def _by_process_index(events: list[LogEvent]) -> None:
    for event in events:
        index = event.details.get("process_index")
        if not event.ranks and index is not None:
            _join(event, [index], "mp.spawn process index")


def _by_task(events: list[LogEvent], hosts: Mapping[int, str]) -> None:
    """Join by Slurm task, except if a launcher inside the task starts the ranks: then numbers are local ranks.

    A rank on another host than the task of its number shows that, too.
    """
    if any(event.details.get("local_rank") is not None for event in events):
        return
    known = {host.partition(".")[0] for host in hosts.values()}
    tasks = [(event, event.details["task"]) for event in events if event.details.get("task") is not None]
    for event, task in tasks:
        of_task, of_rank = (str(name or "").partition(".")[0] for name in (event.details.get("node"), hosts.get(task)))
        if of_task in known and of_rank and of_task != of_rank:
            return
    for event, task in tasks:
        if not event.ranks:
            _join(event, [task], "Slurm task")


def _within_tracebacks(events: list[LogEvent]) -> None:
    """Give a known message inside a traceback the ranks of that traceback."""
    enclosing = Enclosing(events)
    for event in events:
        if not event.ranks and event.kind in ("gloo", "watchdog", "signature"):
            around = enclosing.of(event)
            if around and around.ranks:
                _join(event, around.ranks, around.joined or "its traceback")


def _what_is_left(events: list[LogEvent]) -> None:
    """Join by elimination: unlabelled failures of one kind, and equally many ranks that silently ended that way."""
    codes = exit_codes(events)
    told = {rank for event in events if event.exception and event.kind != "failure_summary" for rank in event.ranks}
    raised = [event for event in events if event.kind == "traceback" and not event.ranks and not event.is_launcher]
    origins = [e for e in raised if not any(m.signature.role == "secondary" for m in e.known_messages(origin=True))]
    _assign(origins, sorted(rank for rank, code in codes.items() if code == 1 and rank not in told))
    dead = gathered(
        ((event.kind, signal), event) for event in events if not event.ranks and (signal := _died_by(event))
    )
    for (_, signal), last_words in dead.items():
        _assign(last_words, sorted(rank for rank, code in codes.items() if code < 0 and signal_name(-code) == signal))


def _died_by(event: LogEvent) -> str | None:
    if event.kind == "fatal_stack":
        code: str | None = event.row["code"]
        return code
    return "SIGABRT" if event.row["code"] == "gloo_size_mismatch" else None


def _assign(events: list[LogEvent], ranks: list[int]) -> None:
    same = {(short_name(e.exception), e.row["file"], e.row["line"]) for e in events}
    if not events or len(events) != len(ranks) or (len(same) > 1 and len(ranks) > 1):
        return
    for event in events:
        _join(event, ranks, "only failing rank" if len(ranks) == 1 else "as many as failing ranks")


def _join(event: LogEvent, ranks: list[int], how: str) -> None:
    event.ranks, event.joined = list(ranks), how


def exit_codes(events: list[LogEvent]) -> dict[int, int]:
    """Exit code per rank, from the last attempt that reports any."""
    codes: dict[int, int] = {}
    for event in sorted(events, key=lambda e: e.attempt):
        if event.row["exit_code"] is not None and not event.is_note:
            codes.update(dict.fromkeys(event.ranks, event.row["exit_code"]))
    return codes


class Enclosing:
    """Finds the traceback whose lines surround another row's."""

    def __init__(self, events: list[LogEvent]) -> None:
        self._by_stream: dict[tuple[str, str | None], _Spans] = defaultdict(_Spans)
        for event in sorted((event for event in events if event.kind == "traceback"), key=_first_line):
            self._by_stream[event.row["source"], event.details.get("stream")].add(event)

    def of(self, event: LogEvent) -> LogEvent | None:
        """The traceback around an event in its stream; if several are interleaved, the one that the event names."""
        line = event.row["source_line"]
        spans = self._by_stream.get((event.row["source"], event.details.get("stream")))
        around = spans.around(line) if spans else []
        naming = [traceback for traceback in around if traceback.row["source_line"] == line]
        return around[0] if len(around) == 1 else naming[0] if naming else None


class _Spans:
    """The tracebacks of one stream, ordered by first line."""

    def __init__(self) -> None:
        self._tracebacks: list[LogEvent] = []
        self._first_lines: list[int] = []
        self._furthest: list[int] = []
        """For each traceback, the last line that it or any earlier one reaches."""

    def add(self, traceback: LogEvent) -> None:
        """Add the next traceback."""
        self._tracebacks.append(traceback)
        self._first_lines.append(_first_line(traceback))
        self._furthest.append(max([traceback.details["last_line"], *self._furthest[-1:]]))

    def around(self, line: int) -> list[LogEvent]:
        """The tracebacks that contain a line, in order. Usually only the last one before it needs checking."""
        found = []
        at = bisect_right(self._first_lines, line) - 1
        while at >= 0 and self._furthest[at] >= line:
            if self._tracebacks[at].details["last_line"] >= line:
                found.append(self._tracebacks[at])
            at -= 1
        return found[::-1]


def _first_line(traceback: LogEvent) -> int:
    return int(traceback.details["first_line"])


# --- building findings from ranks' reports: who reported, where in the program, and the lines as evidence

_EVIDENCE_LIMIT = 8
_VALUES_LIMIT = 64
_NO_RANK = "unknown"


def reported_finding(
    code: str,
    severity: Severity,
    events: list[LogEvent],
    enclosing: Enclosing,
    attributes: dict[str, Any],
    group: str | None,
) -> Finding:
    """Build a finding from ranks' reports; the caller fills in its summary."""
    places = [place for event in events if (place := part_of(event, enclosing)[0])]
    attempts = sorted({event.attempt for event in events} - {0})
    facts = {**attributes, "basis": "log", "attempts": attempts or None}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted({rank for event in events for rank in event.ranks}),
        hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
        group=group,
        summary="",
        evidence=[event.evidence for event in events[:_EVIDENCE_LIMIT]],
        locations=distinct_places(places),
        attributes={name: value for name, value in facts.items() if value is not None},
    )


def operation_of(event: LogEvent, enclosing: Enclosing) -> str | None:
    """The torch.distributed function in the traceback around a message."""
    return part_of(event, enclosing)[1]


def part_of(event: LogEvent, enclosing: Enclosing) -> tuple[Location | None, str | None]:
    """Return the (place, operation) at which the exception containing a log message was raised.

    The place is a line of the program, the operation a torch.distributed function. Each is None if unknown.
    """
    around = enclosing.of(event)
    return around.part_at(event.row["source_line"]) if around else (None, None)


def distinct_places(places: list[Location]) -> list[Location]:
    """Drop duplicate places and limit their number."""
    return list({(place.file, place.line): place for place in places}.values())[:_EVIDENCE_LIMIT]


def by_ranks(values: Mapping[int, Any] | Mapping[int | None, Any]) -> dict[str, Any]:
    """Group values by rank for a reader: `{"ranks 0-6": 412, "rank 7": 411}`; None is an unidentified rank."""
    ranks: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items(), key=lambda item: -1 if item[0] is None else item[0]):
        ranks.setdefault(value, []).extend([] if rank is None else [rank])
    named = {rank_list(mine) if mine else _NO_RANK: value for value, mine in ranks.items()}
    return dict(list(named.items())[:_VALUES_LIMIT])


def who_reports(ranks: list[int]) -> str:
    """The reporting ranks in words, for the start of a sentence."""
    return rank_list(ranks).capitalize() if ranks else "An unidentified rank"
