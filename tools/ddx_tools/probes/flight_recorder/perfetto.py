"""Writes flight records as a trace for ui.perfetto.dev: a process per rank, with a track for each of its process
groups.

All times are on one clock, as far as the collectives themselves show the ranks' clock offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ddx_tools.analysis.collectives.records.records import Records
from ddx_tools.analysis.collectives.records.transfers import ends_of
from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Location, Severity
from ddx_tools.model.rank_spans import rank_spans
from ddx_tools.parsers.trace_events import arrow_end, complete, document, instant, process_name, quoted, thread_name
from ddx_tools.probes.flight_recorder.intervals import Interval, intervals

_FIRST_PID = 100_000
"""The pid of rank 0: Perfetto treats process 0 as the idle task, so rank numbers cannot be pids."""
_UNFINISHED = "⏳ "
_RECORD = re.compile(r"^(?P<source>.*)#record_id=(?P<record>\d{1,18})$", re.S)
_MOST_NAME = 80


def trace_of(store: Store, findings: Sequence[Finding]) -> Iterator[bytes]:
    """Yield the trace in pieces of about 100 KB; the ranks and operations that `findings` blame are marked in it."""
    records = store.derived(Records)
    about = {"made_by": "ddx flight-recorder --perfetto", "ranks": rank_spans(records.ranks)}
    about["clock"] = "seconds subtracted from each rank's clock: " + str(
        {rank: round(offset, 3) for rank, offset in list(records.clock_offsets_s.items())[:64]}
    )
    return document(_Trace(store, records, findings).events(), about)


class _Trace:
    """The events of one trace."""

    def __init__(self, store: Store, records: Records, findings: Sequence[Finding]) -> None:
        self._store = store
        self._records = records
        self._marks = _Marks(store, findings)
        self._texts = _Texts(store, records)
        self._arrows = Arrows(records)
        self._ends_ns = {
            rank: max(each.taken_ns or 0, each.latest_sign_ns or 0) for rank, each in records.ranks.items()
        }
        self._zero_ns = min(
            (
                records.true_ns(row["rank"], row["first_ns"])
                for row in store.query(
                    "SELECT rank, min(least(created_ns, started_ns, completed_ns)) AS first_ns FROM recorded_numbers "
                    "WHERE least(created_ns, started_ns, completed_ns) > 0 GROUP BY rank"
                )
            ),
            default=0,
        )
        self._tid = 0
        self._last_ns = 0

    def events(self) -> Iterator[str]:
        """Yield all events, rank by rank."""
        for rank, mine in intervals(self._store, self._ends_ns):
            yield from self._rank(rank, mine)
        for rank in sorted(self._marks.of_rank.keys() - self._records.ranks.keys()):
            yield from process_name(_FIRST_PID + rank, f"rank {rank} (no record)", rank)
            yield from self._rank_marks(rank, self._last_ns, set())

    def _rank(self, rank: int, mine: Sequence[Interval]) -> Iterator[str]:
        host = self._records.ranks[rank].host
        yield from process_name(_FIRST_PID + rank, f"rank {rank}" + (f" on {host}" if host else ""), rank)
        tracks: dict[tuple[int, bool, int], int] = {}
        marked: list[tuple[int, int | None, Finding]] = []
        end_ns = 0
        for each in mine:
            key = (each.group_id, each.is_transfer, each.lane)
            if key not in tracks:
                tracks[key] = self._new_tid()
                name = self._texts.track(each)
                yield from thread_name(_FIRST_PID + rank, tracks[key], name, len(tracks))
            start_ns, stop_ns = self._time(rank, each.start_ns), self._time(rank, each.end_ns)
            yield complete(_FIRST_PID + rank, tracks[key], start_ns, stop_ns, *self._texts.slice(each))
            yield from self._arrow(each, tracks[key], start_ns, stop_ns)
            marked += [(start_ns, each.record_id, found) for found in self._marks.of(rank, each.record_id)]
            end_ns = max(end_ns, stop_ns)
        self._last_ns = max(self._last_ns, end_ns)
        told = [(at_ns, found, f',"record_id":{record_id or 0}') for at_ns, record_id, found in marked]
        yield from self._marked(rank, "findings: operations", 10_000, told)
        yield from self._rank_marks(rank, end_ns, {id(found) for _, _, found in marked})

    def _arrow(self, each: Interval, tid: int, start_ns: int, stop_ns: int) -> Iterator[str]:
        """An arrow from the start of a send to the end of its receive."""
        found = self._arrows.number(each) if each.is_transfer else None
        if found is not None and each.is_finished and each.is_alone and stop_ns > start_ns:
            number, is_start = found
            at_ns = start_ns if is_start else stop_ns - 1
            yield arrow_end(_FIRST_PID + each.rank, tid, at_ns, number, is_start=is_start)

    def _marked(self, rank: int, track: str, order: int, marks: Sequence[tuple[int, Finding, str]]) -> Iterator[str]:
        """Findings on a separate track, each with its time, finding and details."""
        tid = self._new_tid() if marks else 0
        yield from thread_name(_FIRST_PID + rank, tid, track, order) if marks else ()
        for at_ns, found, more in marks:
            args = f'"finding":{quoted(found.summary)}{more}'
            yield instant(_FIRST_PID + rank, tid, at_ns, found.code, "finding", args)

    def _rank_marks(self, rank: int, at_ns: int, shown: set[int]) -> Iterator[str]:
        """Findings about the rank as a whole, at the end of its record."""
        rest = [(at_ns, found, "") for found in self._marks.of_rank.get(rank, ()) if id(found) not in shown]
        yield from self._marked(rank, "findings: rank", 10_001, rest)

    def _time(self, rank: int, time_ns: int) -> int:
        return max(0, self._records.true_ns(rank, time_ns) - self._zero_ns)

    def _new_tid(self) -> int:
        self._tid += 1
        return self._tid


class _Marks:
    """The ranks and operations that the findings blame."""

    def __init__(self, store: Store, findings: Sequence[Finding]) -> None:
        self.of_rank: dict[int, list[Finding]] = {}
        self._of_record: dict[tuple[int, int], list[Finding]] = {}
        ranks = {row["source"]: row["rank"] for row in store.query("SELECT source, rank FROM fr_dumps")}
        for finding in findings:
            if finding.severity is not Severity.FAILURE:
                continue
            for rank in finding.ranks:
                self.of_rank.setdefault(rank, []).append(finding)
            for evidence in finding.evidence:
                place = _RECORD.match(evidence.source)
                whose = ranks.get(place["source"]) if place else None
                # Evidence also names peers, for comparison with the ranks that a finding is about.
                if place and whose in finding.ranks:
                    self._of_record.setdefault((whose, int(place["record"])), []).append(finding)

    def of(self, rank: int, record_id: int | None) -> Sequence[Finding]:
        """Return the failure findings that blame one operation: that of a rank's flight record with this id."""
        return () if record_id is None else self._of_record.get((rank, record_id), ())


class _Texts:
    """Names and arguments, built once for all operations that share them: escaping costs more than everything else."""

    def __init__(self, store: Store, records: Records) -> None:
        self._calls = {row["call"]: row for row in store.query("SELECT * FROM fr_calls")}
        self._sites = {
            row["site"]: _place(row)
            for row in store.query("SELECT site, user_file, user_line, user_function FROM fr_sites")
        }
        self._groups = records.groups
        self._name, self._of_group, self._of_call = cache(self._named), cache(self._in_group), cache(self._called)
        self._quoted = cache(quoted)

    def track(self, each: Interval) -> str:
        """Return a track name like `mesh_tp (97: ranks 0-7)`, with the lane for transfers."""
        group = self._groups[each.group_id]
        described = group.description if group.description not in ("", "undefined") else "group"
        name = f"{described[:_MOST_NAME]} ({group.name[:_MOST_NAME]}: ranks {rank_spans(group.ranks())})"
        return name + (f" p2p {each.lane + 1}" if each.is_transfer else "")

    def slice(self, each: Interval) -> tuple[str, str, str]:
        """Return (name, category, args) of an operation, as JSON."""
        group_args, category = self._of_group(each.group_id)
        args = f'{_number("seq", each.seq)}{_number("p2p_seq", each.p2p_seq or None)}"record_id":{each.record_id or 0}'
        args += f',{group_args},{self._of_call(each.call)}"state":{self._quoted(each.state or "")}'
        if each.site is not None and self._sites.get(each.site):
            args += f',"at":{self._sites[each.site]}'
        if each.created_ns is not None:
            args += f',"created_ns":"{each.created_ns}"'
        if not each.end_is_known:
            args += ',"end":"not recorded: at most until here"' if each.is_finished else ',"end":"not finished"'
        name = self._name(each.call, each.is_finished)
        return name, category if each.is_finished else '"unfinished"', args

    def _named(self, number: int, is_finished: bool) -> str:
        call = self._calls[number]
        words = " ".join(filter(None, (call["op"] or "operation", call["peer"])))
        return quoted(("" if is_finished else _UNFINISHED) + words, _MOST_NAME)

    def _in_group(self, group_id: int) -> tuple[str, str]:
        group = self._groups[group_id]
        label, members = quoted(group.label, _MOST_NAME), quoted(rank_spans(group.ranks()))
        return f'"group":{label},"group_name":{quoted(group.name, _MOST_NAME)},"members":{members}', label

    def _called(self, number: int) -> str:
        call = self._calls[number]
        return "".join(f'"{name}":{quoted(call[name])},' for name in _SHOWN if call[name])


_SHOWN = (
    "backend", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "input_splits", "output_splits",
)  # fmt: skip


def _number(name: str, value: int | None) -> str:
    return "" if value is None else f'"{name}":{value},'


def _place(row: dict[str, Any]) -> str:
    """The user's line as a JSON string; empty if there is none."""
    if not row["user_file"]:
        return ""
    place = Location(file=row["user_file"][-200:], line=row["user_line"], function=row["user_function"])
    return quoted(place.short())


# --- matching sends with receives, for arrows between them
# Both sides count the sends and receives of one direction from the first one. So there are arrows only between ranks
# whose records are complete from the beginning: a wrapped ring buffer loses the count.


class Arrows:
    """Numbers for arrows, which both ends compute independently."""

    def __init__(self, records: Records) -> None:
        self._groups = records.groups
        self._peers = {
            row["call"]: row["peer"]
            for row in records.query("SELECT call, peer FROM fr_calls WHERE is_p2p AND peer IS NOT NULL")
        }
        self._first: dict[tuple[int, int, int], int] = {}
        self._count: dict[tuple[int, int, int], int] = {}
        self._seen: dict[tuple[int, int, int], int] = {}
        self._rank: int | None = None
        whole = {rank for rank, each in records.ranks.items() if not (each.wrapped or each.only_active)}
        number = 1
        for direction, ends in sorted(self._directions(records).items()):
            if ends.keys() >= set(direction[1:]) and set(direction[1:]) <= whole:
                self._first[direction] = number
                self._count[direction] = min(ends.values())
                number += self._count[direction]

    def ends(self, group_id: int, call: int) -> tuple[int, int] | None:
        """Return the global source and target rank of a call; None if it is not a transfer or the record does not
        say."""
        return ends_of(self._groups[group_id].members, self._peers.get(call))

    def number(self, each: Interval) -> tuple[int, bool] | None:
        """Return the arrow at an operation, and whether it starts there. Call it in each rank's call order."""
        ends = self.ends(each.group_id, each.call)
        if ends is None or ends[0] == ends[1]:
            return None
        direction = (each.group_id, *ends)
        if direction not in self._first:
            return None
        if each.rank != self._rank:
            self._rank, self._seen = each.rank, {}
        place = self._seen.get(direction, 0)
        self._seen[direction] = place + 1
        return (self._first[direction] + place, each.rank == ends[0]) if place < self._count[direction] else None

    def _directions(self, records: Records) -> dict[tuple[int, int, int], dict[int, int]]:
        """{(group, source, target): {rank: its number of recorded ends}}."""
        found: dict[tuple[int, int, int], dict[int, int]] = {}
        for row in records.query(
            "SELECT group_id, call, rank, count(*) AS times FROM recorded_numbers "
            "SEMI JOIN (SELECT call FROM fr_calls WHERE is_p2p) USING (call) GROUP BY ALL"
        ):
            ends = self.ends(row["group_id"], row["call"])
            if ends is not None and row["rank"] in ends:
                counts = found.setdefault((row["group_id"], *ends), {})
                counts[row["rank"]] = counts.get(row["rank"], 0) + row["times"]
        return found
