"""Simulates the flight recorder of one rank: numbers its operations, and shows them as a dump at some moment would.

After FlightRecorder.hpp and ProcessGroupNCCL.cpp of torch 2.x: a watchdog checks each group's work every 100 ms, and
only then notes that something started or completed. A dump checks once more, for the entries but not for `pg_status`.
Start events exist only with TORCH_NCCL_ENABLE_TIMING. The entries of transfers in a batch have no events at all and
stay `scheduled`; the closing `coalesced` entry has them. Gloo only notes that work was retired; it numbers sends and
receives without recording them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddx_evals.simulator.engine import Issued, RankRun
from ddx_evals.simulator.training.instructions import Batch, Collective, Instruction, SimulatedTransfer

_WATCHDOG_NS = 100_000_000
_RETIRE_NS = 2_000_000


@dataclass(frozen=True)
class Recorder:
    """The recorder settings from the job's environment."""

    gloo: bool
    timing: bool
    """Whether starts are recorded: NCCL with TORCH_NCCL_ENABLE_TIMING."""
    ring: int
    """The number of entries kept."""
    only_active: bool = False


@dataclass
class Counters:
    """A rank's counters: records and, per group (by index), collectives, P2P groups, operations."""

    record: int = 0
    collective: Counter[int] = field(default_factory=Counter)
    p2p: Counter[int] = field(default_factory=Counter)
    operation: Counter[int] = field(default_factory=Counter)

    def count(self, operation: Instruction, times: int, *, gloo: bool) -> None:
        """Count an operation that was issued `times` times."""
        if isinstance(operation, Collective):
            self.record += times
            self.collective[operation.group.index] += times
            self.operation[operation.group.index] += times
        elif isinstance(operation, SimulatedTransfer):
            self.record += 0 if gloo else times
            self.p2p[operation.group.index] += 0 if gloo else times
            self.operation[operation.group.index] += times
        elif isinstance(operation, Batch):
            self.record += times * (len(operation.transfers) + 1)
            self.p2p[operation.group.index] += times
            self.operation[operation.group.index] += times * len(operation.transfers)


def number(run: RankRun, before: Counters, *, gloo: bool) -> None:
    """Number a rank's operations from `before` on. A batch gets the numbers of its first entry."""
    counters = before
    for issued in run.issued:
        operation = issued.operation
        index = operation.group.index
        issued.record_id = counters.record
        issued.op_id = counters.operation[index] + 1
        counters.count(operation, 1, gloo=gloo)
        issued.collective_seq = counters.collective[index]
        issued.p2p_seq = counters.p2p[index]


@dataclass(frozen=True)
class DumpedEntry:
    """One entry as a dump shows it. Times in ns of the true clock."""

    issued: Issued
    part: int | None
    """The index of a transfer in a batch; None: the whole operation, which for a batch is its closing entry."""
    record_id: int
    op_id: int
    started_noticed: int | None
    completed_noticed: int | None
    retired: bool


class RecorderView:
    """A rank's recorder at one moment. `frozen_ns`: from then on, no completion was noticed."""

    def __init__(self, run: RankRun, recorder: Recorder, at_ns: int, *, frozen_ns: int | None = None):
        self._recorder = recorder
        self.at_ns = at_ns
        self._frozen = frozen_ns is not None and frozen_ns < at_ns
        self._last_look = min(at_ns, frozen_ns) if frozen_ns is not None else at_ns
        self._phase = run.rank * 7_919_000
        self._issued = [issued for issued in run.issued if issued.created <= at_ns]

    def entries(self) -> list[DumpedEntry]:
        """The entries of the ring, oldest first."""
        shown: list[DumpedEntry] = []
        for issued in reversed(self._issued):
            shown += reversed(list(self._show(issued)))
            if len(shown) >= self._recorder.ring:
                break
        kept = shown[: self._recorder.ring][::-1]
        if self._recorder.only_active:
            return [entry for entry in kept if entry.completed_noticed is None]
        return kept

    def status(self) -> dict[int, tuple[int, int, int]]:
        """For each group index, the numbers of the last enqueued, started and completed work; -1: none."""
        works: dict[int, list[Issued]] = {}
        for issued in self._issued:
            if not (self._recorder.gloo and isinstance(issued.operation, SimulatedTransfer)):
                works.setdefault(issued.operation.group.index, []).append(issued)
        return {index: self._group_status(issued) for index, issued in works.items()}

    def _group_status(self, works: Sequence[Issued]) -> tuple[int, int, int]:
        started, completed, last = -1, -1, 0
        for issued in works:
            index = issued.operation.group.index
            seq = _work_seq(issued)
            if self._recorder.timing and self._noticed(issued.started, index) is not None:
                started = max(started, seq)
            noticed = self._noticed(issued.ended, index)
            if noticed is not None and noticed >= last:
                completed, last = seq, noticed
        return _work_seq(works[-1]), started, completed

    def _show(self, issued: Issued) -> Iterator[DumpedEntry]:
        operation = issued.operation
        if isinstance(operation, Batch):
            for part in range(len(operation.transfers)):
                yield DumpedEntry(issued, part, issued.record_id + part, issued.op_id + part, None, None, False)
            record_id = issued.record_id + len(operation.transfers)
            yield self._work(issued, record_id, issued.op_id + len(operation.transfers) - 1)
        elif not (self._recorder.gloo and isinstance(operation, SimulatedTransfer)):
            yield self._work(issued, issued.record_id, issued.op_id)

    def _work(self, issued: Issued, record_id: int, op_id: int) -> DumpedEntry:
        retired = self._noticed(issued.ended, issued.operation.group.index)
        if self._recorder.gloo:
            return DumpedEntry(issued, None, record_id, op_id, None, None, retired is not None)
        completed = retired if retired is not None else self._asked(issued.ended)
        started = None
        if self._recorder.timing:
            started = completed if completed is not None else self._asked(issued.started)
        return DumpedEntry(issued, None, record_id, op_id, started, completed, retired is not None)

    def _asked(self, happened: int | None) -> int | None:
        """The time of an event as found by the dump itself, which checks the state of an entry."""
        return self.at_ns if happened is not None and happened <= self.at_ns and not self._frozen else None

    def _noticed(self, happened: int | None, group: int) -> int | None:
        """When the watchdog noticed an event; None: not yet."""
        if happened is None or happened > self._last_look:
            return None
        every = _RETIRE_NS if self._recorder.gloo else _WATCHDOG_NS
        noticed = happened + every - (happened + self._phase + group * 31_337_000) % every
        return noticed if noticed <= self._last_look else None


def _work_seq(issued: Issued) -> int:
    """The number of a work in `pg_status`; for transfers, that of the P2P group."""
    return issued.collective_seq if isinstance(issued.operation, Collective) else issued.p2p_seq
