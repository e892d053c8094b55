"""Comparison of several NCCL RAS answers: which communicators make no progress, and who is behind in them.

A working job shows mismatches too, so a single answer means little. Counts that are equal in the first and the last of
several answers show no progress. Processes that launched more wait for those that launched less; across all
communicators these waits lead back to a few processes, like the waits in flight records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ddx_tools.analysis.collectives.findings import State, Where
from ddx_tools.analysis.collectives.wait_solver import Hold, Known, SolvedWaits, fewest, graph_of
from ddx_tools.analysis.nccl.operation_names import operation_name
from ddx_tools.analysis.nccl.process_rows import Row
from ddx_tools.analysis.nccl.seats import Seat, global_ranks
from ddx_tools.evidence.store import Store
from ddx_tools.model.grouping import gathered

BASIS = "nccl_ras"
STANDS_S = 5.0
"""A job counts as hung if its counts do not change for this long, as with stacks."""


@dataclass(frozen=True)
class RasCall:
    """One answer's launch counts for an operation of a communicator: {launches: (listed ranks, number of ranks)}."""

    operation: str | None
    by_count: Mapping[int, tuple[tuple[int, ...], int]]

    @property
    def most(self) -> int:
        """The highest launch count of any rank."""
        return max(self.by_count)

    @property
    def name(self) -> str:
        """The operation's name as other sources write it."""
        return operation_name(self.operation) if self.operation else "collectives"


@dataclass
class RasCommunicator:
    """A communicator across all answers, earliest first."""

    hash: str
    nranks: int | None
    polls: list[dict[str | None, RasCall]] = field(default_factory=list)
    """Counts per operation, for each answer; RAS's text form lists only operations whose counts differ."""
    rows: list[list[Row]] = field(default_factory=list)
    seats: dict[int, Seat] = field(default_factory=dict)
    """The process per rank in the communicator, as far as reported."""
    absent: set[int] = field(default_factory=set)
    """Ranks in the communicator missing from the last answer."""
    in_last: bool = False
    """Whether the last answer contains it."""

    @property
    def label(self) -> str:
        """The communicator's name in findings."""
        return f"communicator {self.hash} of {self.nranks} ranks"

    @cached_property
    def moved(self) -> bool | None:
        """Whether any rank launched something between the first answer and the last; None if unknown."""
        if len(self.polls) < 2 or not self.in_last:
            return None
        first, last = self.polls[0], self.polls[-1]
        both = first.keys() & last.keys()
        if not both:
            return None
        return first.keys() != last.keys() or any(first[name] != last[name] for name in both)

    @property
    def behind(self) -> list[RasCall]:
        """The operations with unequal launch counts in the last answer."""
        return [call for call in self.polls[-1].values() if len(call.by_count) > 1] if self.in_last else []

    @cached_property
    def movers(self) -> set[int]:
        """Return the ranks in the communicator that launched an operation between the first and last answer.

        Ranks without a listed count in the last answer are included if any rank launched something. Empty if none did,
        or if it is unknown.
        """
        if not self.moved:
            return set()
        then, now = self._counts(self.polls[0]), self._counts(self.polls[-1])
        return {rank for rank in self.seats if rank not in now or now[rank] != then.get(rank)}

    def launches(self) -> dict[int, dict[str | None, int]]:
        """`{rank in it: {operation: launches}}` in the last answer, for ranks whose counts are all listed."""
        found = self._counts(self.polls[-1])
        return {rank: counts for rank, counts in found.items() if len(counts) == len(self.polls[-1])}

    @staticmethod
    def _counts(calls: Mapping[str | None, RasCall]) -> dict[int, dict[str | None, int]]:
        found: dict[int, dict[str | None, int]] = {}
        for call in calls.values():
            for count, (ranks, _) in call.by_count.items():
                for rank in ranks:
                    found.setdefault(rank, {})[call.operation] = count
        return found


@dataclass(kw_only=True)
class RasHold(Hold):
    """A wait of processes that launched more than others in a communicator. Its numbers are processes, not ranks."""

    of: RasCommunicator


@dataclass(frozen=True)
class RasPolls:
    """All RAS answers, combined."""

    communicators: tuple[RasCommunicator, ...]
    polls: int
    span_s: float | None
    """Seconds from the first answer to the last; None if their times are unknown."""
    processes: tuple[Seat, ...]
    """All processes; their index is the number that holds use."""
    ranks: Mapping[Seat, int]
    """Known global ranks per process."""
    gpus: int | None
    """Number of GPUs in the job, from the last answer."""

    def of(self, name: str | None, nranks: int | None) -> RasCommunicator | None:
        """The communicator with a given hash and size."""
        key = (str(name).removeprefix("0x"), nranks)
        return next((one for one in self.communicators if (one.hash, one.nranks) == key), None)

    @cached_property
    def movers(self) -> set[Seat]:
        """Processes that launched something in any communicator between the first answer and the last."""
        return {one.seats[rank] for one in self.communicators for rank in one.movers}

    @property
    def moving(self) -> bool:
        """Whether every process made progress in some communicator."""
        return bool(self.processes) and self.movers >= set(self.processes)

    def at_work(self, one: RasCommunicator) -> bool:
        """Whether any member of a communicator made progress in another one."""
        return any(seat in self.movers for seat in one.seats.values())

    @property
    def still(self) -> list[RasCommunicator]:
        """The communicators that make no progress and have ranks that are behind."""
        return [one for one in self.communicators if one.moved is False and one.behind]

    @cached_property
    def solved(self) -> SolvedWaits[RasHold] | None:
        """Solve the wait graph of the communicators that make no progress; None if no process waits.

        Its numbers are indices into `processes`, not ranks.
        """
        holds = [hold for one in self.still for hold in self._holds(one)]
        elsewhere = {rank for hold in holds for rank in hold.elsewhere}

        def state(rank: int) -> State | None:
            return "elsewhere" if rank in elsewhere else "outside"

        def silent(unexplained: list[RasHold]) -> tuple[set[int], bool]:
            return fewest([set(hold.unknown) for hold in unexplained])

        return graph_of(holds, Known(state=state, silent=silent))

    def ranks_of(self, numbers: Sequence[int]) -> list[int]:
        """The global ranks of processes; empty unless all are known."""
        found = [self.ranks.get(self.processes[number]) for number in numbers]
        return sorted(rank for rank in found if rank is not None) if None not in found else []

    def words(self, numbers: Sequence[int]) -> str:
        """Processes in words: `process 4242 on 10.0.0.1, …`."""
        seats = [self.processes[number] for number in numbers[:6]]
        more = f" and {len(numbers) - 6} more" if len(numbers) > 6 else ""
        return ", ".join(f"process {pid} on {host}" for host, pid, _ in seats) + more

    @cached_property
    def _numbers(self) -> dict[Seat, int]:
        return {seat: index for index, seat in enumerate(self.processes)}

    def _holds(self, one: RasCommunicator) -> Iterator[RasHold]:
        """The wait in a communicator without progress; none if the ranks behind in it are at work in another one."""
        number = self._numbers
        launches = {rank: counts for rank, counts in one.launches().items() if rank in one.seats}
        if not launches or len(launches) + len(one.absent) < (one.nranks or 0):
            return  # the text form lists only a small minority
        most = {call.operation: call.most for call in one.polls[-1].values()}
        totals = {rank: sum(counts.values()) for rank, counts in launches.items()}
        unknown = tuple(sorted(number[one.seats[rank]] for rank in one.absent if rank in one.seats))
        last = one.behind[0]
        at = Where(BASIS, one.label, operation=last.name)
        if any(counts == most for counts in launches.values()):
            least = min(totals.values())
            ahead = [rank for rank, total in totals.items() if total > least]
            behind = [rank for rank, total in totals.items() if total == least]
            if any(one.seats[rank] in self.movers for rank in behind):
                return
            late = tuple(sorted(number[one.seats[rank]] for rank in behind))
            waiting = dict.fromkeys((number[one.seats[rank]] for rank in sorted(ahead)), None)
            yield RasHold(at=at, of=one, waiting=waiting, lacking=late, unknown=unknown)
            return
        # No rank has the highest count of every operation: the ranks took different paths.
        sides = sorted(gathered((tuple(sorted(c.items(), key=str)), r) for r, c in launches.items()).values(), key=len)
        rest = [rank for side in sides[:-1] for rank in side]
        if len(rest) < len(sides[-1]) and not any(one.seats[rank] in self.movers for rank in rest):
            waiting = dict.fromkeys((number[one.seats[rank]] for rank in sides[-1]), None)
            yield RasHold(at=at, of=one, waiting=waiting, elsewhere=tuple(sorted(number[one.seats[r]] for r in rest)))


def ras_polls(store: Store) -> RasPolls:
    """Read and combine the RAS answers of a store; empty if RAS was not queried."""
    rows = store.query("SELECT * FROM nccl_ras WHERE what = 'operations' AND value IS NOT NULL AND communicator <> ''")
    times = store.query("SELECT source, any_value(taken_s) AS taken_s FROM nccl_ras GROUP BY source")
    taken = {row["source"]: row["taken_s"] for row in times}
    dated = all(when is not None for when in taken.values())
    order = sorted(taken, key=lambda source: (taken[source] if dated else 0.0, source))
    members = store.query("SELECT * FROM nccl_ras_members ORDER BY source, rank")
    found: dict[tuple[str, int | None], RasCommunicator] = {}
    asked = gathered((row["source"], row) for row in rows)
    for source in order:
        for key, together in gathered((_key(row), row) for row in asked.get(source, ())).items():
            one = found.setdefault(key, RasCommunicator(*key))
            one.polls.append(_calls(together))
            one.rows.append(together)
            one.in_last = source == order[-1]
    for row in members:
        one = found.setdefault(_key(row), RasCommunicator(*_key(row)))
        if row["host"] is not None and row["pid"] is not None:
            gpu = -1 if row["gpu"] is None else row["gpu"]
            one.seats[row["rank"]] = (row["host"], row["pid"], gpu)
            if row["state"] != "listed" and row["source"] == order[-1]:
                one.absent.add(row["rank"])
    processes = tuple(sorted({seat for one in found.values() for seat in one.seats.values()}))
    span_s = max(taken.values()) - min(taken.values()) if dated and len(taken) > 1 else None
    summary = store.query("SELECT source, nranks FROM nccl_ras WHERE what = 'summary' AND status = 'OK'")
    gpus = {row["source"]: row["nranks"] for row in summary}.get(order[-1]) if order else None
    ranks = global_ranks(store, list(found.values()))
    return RasPolls(tuple(found.values()), len(order), span_s, processes, ranks, gpus)


def _key(row: Mapping[str, Any]) -> tuple[str, int | None]:
    return str(row["communicator"]).removeprefix("0x"), row["nranks"]


def _calls(rows: Sequence[Row]) -> dict[str | None, RasCall]:
    calls = {}
    for operation, together in gathered((row["operation"], row) for row in rows).items():
        by_count: dict[int, tuple[tuple[int, ...], int]] = {}
        for row in together:
            ranks, many = by_count.get(int(row["value"]), ((), 0))
            by_count[int(row["value"])] = (*ranks, *(row["ranks"] or ())), many + (row["many"] or 0)
        calls[operation] = RasCall(operation, by_count)
    return calls
