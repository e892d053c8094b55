"""Chooses the dumps on disk that belong together: those of a job's last attempt, never a mix of attempts.

A launcher that restarts a job leaves dumps from each attempt, a periodic dumper leaves dumps from many moments, and
several hosts leave theirs in one directory each. Dumps whose names differ only in the rank form a set. The set with
the newest entry counts, together with sets that must be from the same attempt: copies of its dumps, and sets of other
ranks from nearly the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddx_tools.model.diagnosis import rank_list
from ddx_tools.model.files.names import shown

_Row = Mapping[str, Any]
_Recorder = tuple[int, str]

_SAME_TIME_NS = 600_000_000_000
"""In a job that makes no progress, no rank calls operations for longer than this: NCCL's default timeout."""
_SETTLED_NS = 2_000_000_000
"""Another rank of the same attempt may have written its last dump this much later, whatever the others did."""
_CLOCK_OFF_NS = 3 * 3600 * 1_000_000_000
"""No clock of a training host is off by this much."""
_FEW_CALLS = 64
"""Ranks of one attempt that stop together differ by fewer calls."""
LIVE = frozenset({"agent", "endpoint"})
"""Origins of dumps that running processes gave on request."""
_NUMBERED = re.compile(r"(?:^|[^a-z])(?:attempt|restart|retry)[-_]?(\d{1,9})", re.IGNORECASE)
_MOST_LINES = 10
_MOST_SHOWN = 120


@dataclass(frozen=True)
class ChosenDumps:
    """The dumps that count, in the order given, and what was left out, as lines for a person."""

    dumps: list[_Row]
    left_out: list[str]


@dataclass
class _Set:
    """Dumps that are from one attempt, as far as is known."""

    name: str
    dumps: list[_Row] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    recorders: set[_Recorder] = field(default_factory=set)
    fingerprints: set[tuple[Any, ...]] = field(default_factory=set)
    world_sizes: set[int] = field(default_factory=set)
    newest_ns: int | None = None
    last_call_ns: int | None = None
    """In a job that makes no progress, all ranks made their last calls at about this time, however long they wait."""
    number: str | None = None
    """Attempt number, if the file name contains one."""

    @property
    def label(self) -> str:
        return shown(self.name, _MOST_SHOWN)

    def __post_init__(self) -> None:
        self.number = next(iter(_NUMBERED.findall(self.name)[-1:]), None)

    def add(self, dump: _Row) -> None:
        """Add a dump to the set."""
        self.dumps.append(dump)
        self.ranks.add(dump["rank"])
        self.recorders.add(_recorder(dump))
        self.fingerprints.add(_fingerprint(dump))
        if dump["world_size"]:
            self.world_sizes.add(dump["world_size"])
        if (time := _time(dump)) is not None:
            self.newest_ns = max(time, self.newest_ns or 0)
        if (called := dump["last_call_ns"]) is not None:
            self.last_call_ns = max(called, self.last_call_ns or 0)


def chosen_attempt(dumps: Sequence[_Row]) -> ChosenDumps:
    """Choose the flight-record dumps of the job's last attempt, and describe those left out.

    `dumps` are rows of `fr_dumps` with a known rank. Dumps given by running processes always count.
    """
    sets: dict[str, _Set] = {}
    for dump in dumps:
        if dump["origin"] not in LIVE and dump["attempt"] is not None:
            sets.setdefault(dump["attempt"], _Set(dump["attempt"])).add(dump)
    left_out: list[str] = []
    used = _of_the_last_moment(_together(list(sets.values()), left_out), left_out)
    dropped = {id(dump) for each in sets.values() for dump in each.dumps} - {id(dump) for dump in used}
    if len(left_out) > _MOST_LINES:
        left_out[_MOST_LINES:] = [f"{len(left_out) - _MOST_LINES} more sets of flight records were left out"]
    return ChosenDumps([dump for dump in dumps if id(dump) not in dropped], left_out)


def _together(sets: list[_Set], left_out: list[str]) -> list[_Row]:
    """The dumps of the newest set and of the sets that belong to it."""
    if not sets:
        return []
    newest_first = sorted(sets, key=_newest_and_fullest, reverse=True)
    base = _base(newest_first)
    used = _Set(base.name)
    for dump in base.dumps:
        used.add(dump)
    for other in newest_first:
        if other is base:
            continue
        if why := _why_not(used, other):
            ranks = rank_list(other.ranks)
            left_out.append(
                f"{other.label}: {len(other.dumps)} flight records ({ranks}) were left out: {why}. "
                "To read them, pass only these files."
            )
        else:
            used.number = used.number or other.number
            for dump in other.dumps:
                if _fingerprint(dump) not in used.fingerprints:
                    used.add(dump)
    return used.dumps


def _newest_and_fullest(each: _Set) -> tuple[int, int, int]:
    frames = sum(bool(dump["with_frames"]) for dump in each.dumps)
    return (-1 if each.newest_ns is None else each.newest_ns, frames, len(each.dumps))


def _base(newest_first: list[_Set]) -> _Set:
    """The newest set, or, if it is only partly written, the complete one from nearly the same time."""
    newest = newest_first[0]
    for other in newest_first[1:]:
        same_attempt = _is_near(newest, other) and newest.number == other.number
        if same_attempt and newest.ranks < other.ranks and 2 * len(newest.ranks) <= len(other.ranks):
            return other
    return newest


def _why_not(used: _Set, other: _Set) -> str | None:
    """Why two sets are not from the same attempt; None if they are."""
    if None not in (used.number, other.number) and used.number != other.number:
        return f"their name says attempt {other.number}, not {used.number}"
    common = [dump for dump in other.dumps if _recorder(dump) in used.recorders]
    if common and all(_fingerprint(dump) in used.fingerprints for dump in common):
        return None
    if common:
        return f"same ranks, but {_when(used, other)} {used.label}"
    if not _is_near(used, other) and not (other.ranks.isdisjoint(used.ranks) and _have_called_as_much(used, other)):
        return f"{_when(used, other)} {used.label}"
    sizes = used.world_sizes | other.world_sizes
    return None if len(sizes) < 2 else f"the job size differs from {used.label}"


def _of_the_last_moment(dumps: list[_Row], left_out: list[str]) -> list[_Row]:
    """Of a rank's several dumps in one set, the last. A rank without a dump from the last moment is left out."""
    times: dict[_Recorder, set[int]] = {}
    for dump in dumps:
        if (time := _time(dump)) is not None:
            times.setdefault(_recorder(dump), set()).add(time)
    most = max(map(len, times.values()), default=0)
    if most < 2:
        return dumps
    latest = {recorder: max(mine) for recorder, mine in times.items()}
    earlier = set().union(*times.values()) - set(latest.values())
    last = {latest[recorder] for recorder, mine in times.items() if len(mine) == most}
    gone = {
        recorder
        for recorder, mine in times.items()
        if len(mine) < most
        and _distance(latest[recorder], last) > _SETTLED_NS + 10 * _distance(latest[recorder], earlier)
    }
    kept = [
        dump for dump in dumps if _recorder(dump) not in gone and _time(dump) in (None, latest.get(_recorder(dump)))
    ]
    line = f"{len(dumps) - len(kept)} earlier flight records were left out: only the last of each rank counts"
    if gone:
        line += f". None from the last moment exists for {rank_list({rank for rank, _ in gone})}"
    left_out.append(line)
    return kept


def _recorder(dump: _Row) -> _Recorder:
    """The recorder of a dump, as (rank, backend): each backend with its own recorder counts separately."""
    return (dump["rank"], dump["backend"] or "")


def _fingerprint(dump: _Row) -> tuple[Any, ...]:
    """A key that is equal for copies of one dump, including its JSON version."""
    return (_recorder(dump), dump["latest_ns"], dump["entries"], dump["last_record"])


def _time(dump: _Row) -> int | None:
    """When a dump was taken, or else the newest time that it mentions."""
    time = dump["latest_ns"] if dump["taken_ns"] is None else dump["taken_ns"]
    return None if time is None else int(time)


def _distance(time: int, others: set[int]) -> int:
    return min((abs(time - other) for other in others), default=0)


def _is_near(used: _Set, other: _Set) -> bool:
    """Whether two sets can be from one incident; a set that mentions no time always can."""
    if used.last_call_ns is None or other.last_call_ns is None:
        return True
    return abs(used.last_call_ns - other.last_call_ns) <= _SAME_TIME_NS


def _have_called_as_much(used: _Set, other: _Set) -> bool:
    """Whether ranks of two sets have made nearly as many calls: then a host's clock may be wrong instead."""
    if used.last_call_ns is None or other.last_call_ns is None:
        return False
    ends = [max((dump["last_record"] or 0 for dump in each.dumps), default=0) for each in (used, other)]
    hours_apart = abs(used.last_call_ns - other.last_call_ns) > _CLOCK_OFF_NS
    return not hours_apart and min(ends) > _FEW_CALLS and max(ends) - min(ends) <= _FEW_CALLS


def _when(used: _Set, other: _Set) -> str:
    if used.last_call_ns is None or other.last_call_ns is None:
        return "their time is unknown, unlike"
    seconds = (used.last_call_ns - other.last_call_ns) / 1e9
    return f"{abs(seconds):.0f} s {'older' if seconds >= 0 else 'newer'} than"
