"""Runs the programs of all ranks together and determines when each operation was issued, started and completed.

Times depend on each other only by "after the latest of", never on which of two events came first. So the simulation
needs no ticking clock: everything whose predecessors are known is computed, until nothing more can be. What is left
hangs, and a dump at any moment is a cut through the times.

A communicator's operations run in order on its own stream, each after the main stream's work at the time of issue. An
operation ends when all sides are in it. In a blocking job (Gloo), the CPU waits for each operation; otherwise it runs
ahead until it synchronizes.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TypeAlias

from ddx_evals.simulator.training.instructions import (
    Collective,
    Compute,
    Operation,
    Program,
    Sign,
    SimulatedTransfer,
    Wait,
)

_LAUNCH_NS = 15_000
_JITTER = 0.08

Stream: TypeAlias = tuple[int, ...]
"""(group,) for collectives and batches; (group, low, high) for the two-rank communicator of single transfers."""


class Issued:
    """An operation that one rank issued. Times are in ns of one true clock; None: not by the end of the simulation."""

    __slots__ = (
        "awaited",
        "collective_seq",
        "created",
        "dependency",
        "ended",
        "latest",
        "op_id",
        "open",
        "operation",
        "p2p_seq",
        "rank",
        "record_id",
        "started",
        "stream",
    )

    def __init__(self, operation: Operation, rank: RankRun, created: int) -> None:
        self.operation = operation
        self.rank = rank
        self.created = created
        self.dependency = 0
        self.started: int | None = None
        self.ended: int | None = None
        self.awaited = False
        self.open = 1
        self.latest = 0
        self.stream: Stream = ()
        self.record_id = self.op_id = self.collective_seq = self.p2p_seq = 0


_ISSUE, _WAIT, _COMPUTE, _STUCK, _SYNCHRONIZE = range(5)

_Queued: TypeAlias = tuple[int, Issued | None, int, int]
"""Work of the main stream: (kind, operation, earliest start in ns, duration in ns)."""


class RankRun:
    """The run of one rank."""

    def __init__(self, rank: int, program: Program, start_ns: int, jitter: random.Random) -> None:
        self.rank = rank
        self.issued: list[Issued] = []
        """Operations in the order in which the CPU issued them."""
        self.cpu_ns = start_ns
        """When the CPU reached its final position: its stall, its wait or the end of the program."""
        self.position = 0
        """The index of the instruction at which the CPU ended."""
        self.program = program
        self.main_ns = start_ns
        self.main: deque[_Queued] = deque()
        self.streams: dict[Stream, deque[Issued]] = defaultdict(deque)
        self.free_ns: dict[Stream, int] = defaultdict(int)
        self.last_of_group: dict[int, Issued] = {}
        self.jitter = jitter

    @property
    def finished(self) -> bool:
        """Whether the CPU reached the end of the program."""
        return self.position >= len(self.program)

    @property
    def waits(self) -> bool:
        """Whether an operation that it issued never ended."""
        return any(issued.ended is None for issued in self.issued)


class Engine:
    """One simulation: `programs[rank]` for every rank, all starting at about `start_ns`."""

    def __init__(self, programs: Sequence[Program], *, start_ns: int, blocking: bool, seed: int) -> None:
        self._blocking = blocking
        self._arrivals: list[tuple[Issued, int]] = []
        self._movable: list[RankRun] = []
        self._joined: dict[tuple[int, int], list[Issued]] = defaultdict(list)
        self._collectives: dict[tuple[int, int], int] = defaultdict(int)
        self._unmatched: dict[tuple[Stream, int, int, bool], deque[tuple[Issued, int, int]]] = defaultdict(deque)
        self.never_ends: set[tuple[int, int]] = set()
        """(group index, n-th collective) of collectives that hang although all members are in them."""
        self.ranks = []
        for rank, program in enumerate(programs):
            jitter = random.Random(seed * 100_003 + rank)
            self.ranks.append(RankRun(rank, program, start_ns + jitter.randrange(30_000_000), jitter))

    def run(self) -> list[RankRun]:
        """Simulate everything that can happen; return the runs of all ranks."""
        for rank in self.ranks:
            self._cpu(rank)
            self._main(rank)
        while self._arrivals or self._movable:
            while self._arrivals:
                self._arrive(*self._arrivals.pop())
            if self._movable:
                self._main(self._movable.pop())
        return self.ranks

    def _cpu(self, run: RankRun) -> None:
        """Issue instructions until the CPU must wait for the main stream, is stuck or done."""
        program, queue = run.program, run.main
        while run.position < len(program):
            instruction = program[run.position]
            if isinstance(instruction, Compute):
                factor = 1 + _JITTER * run.jitter.random()
                run.cpu_ns += int(instruction.cpu_ns * factor)
                if self._blocking:
                    run.cpu_ns += int(instruction.gpu_ns * factor)
                elif instruction.gpu_ns:
                    queue.append((_COMPUTE, None, run.cpu_ns, int(instruction.gpu_ns * factor)))
            elif isinstance(instruction, Sign):
                if instruction is Sign.CPU_STUCK:
                    return
                if instruction is Sign.SYNCHRONIZE:
                    queue.append((_SYNCHRONIZE, None, 0, 0))
                    return
                queue.append((_STUCK, None, 0, 0))
            elif isinstance(instruction, Wait):
                last = run.last_of_group.get(instruction.group.index)
                if last is not None:
                    queue.append((_WAIT, last, 0, 0))
                    if self._blocking:
                        queue.append((_SYNCHRONIZE, None, 0, 0))
                        return
            else:
                self._issue(run, instruction)
                if self._blocking and not (isinstance(instruction, Collective) and instruction.asynchronous):
                    queue.append((_SYNCHRONIZE, None, 0, 0))
                    return
            run.position += 1

    def _issue(self, run: RankRun, operation: Operation) -> None:
        issued = Issued(operation, run, run.cpu_ns)
        run.cpu_ns += _LAUNCH_NS
        run.issued.append(issued)
        group = operation.group
        run.last_of_group[group.index] = issued
        if isinstance(operation, SimulatedTransfer):
            mine = group.local[run.rank]
            issued.stream = (group.index, min(mine, operation.peer), max(mine, operation.peer))
        else:
            issued.stream = (group.index,)
        run.main.append((_ISSUE, issued, 0, 0))
        if not (isinstance(operation, Collective) and operation.asynchronous):
            run.main.append((_WAIT, issued, 0, 0))

    def _main(self, run: RankRun) -> None:
        """Process the main stream's queue; let the CPU continue if it waited for that."""
        queue = run.main
        while queue:
            what, issued, not_before_ns, took_ns = queue[0]
            if what == _COMPUTE:
                run.main_ns = max(run.main_ns, not_before_ns) + took_ns
            elif what == _STUCK:
                return
            elif what == _SYNCHRONIZE:
                run.cpu_ns = max(run.cpu_ns, run.main_ns)
                run.position += 1
                queue.popleft()
                self._cpu(run)
                continue
            else:
                assert issued is not None
                if what == _ISSUE:
                    self._enter_stream(run, issued)
                elif issued.ended is None:
                    issued.awaited = True
                    return
                else:
                    run.main_ns = max(run.main_ns, issued.ended)
            queue.popleft()

    def _enter_stream(self, run: RankRun, issued: Issued) -> None:
        issued.dependency = max(run.main_ns, issued.created)
        waiting = run.streams[issued.stream]
        waiting.append(issued)
        if len(waiting) == 1:
            self._arrivals.append((issued, max(issued.dependency, run.free_ns[issued.stream])))

    def _arrive(self, issued: Issued, at: int) -> None:
        issued.started = issued.latest = at
        operation = issued.operation
        if isinstance(operation, Collective):
            self._join(issued, operation)
        elif isinstance(operation, SimulatedTransfer):
            self._pair(issued, operation, at)
        else:
            issued.open = len(operation.transfers)
            for transfer in operation.transfers:
                self._pair(issued, transfer, at)

    def _join(self, issued: Issued, operation: Collective) -> None:
        """Match a group's collectives by the order in which each member issued them."""
        group = operation.group
        counter = (issued.rank.rank, group.index)
        self._collectives[counter] += 1
        key = (group.index, self._collectives[counter])
        members = self._joined[key]
        members.append(issued)
        if len(members) < group.size:
            return
        del self._joined[key]
        if key in self.never_ends or not _agree(members):
            return
        end = max(member.latest for member in members) + operation.took_ns
        for member in members:
            self._end(member, end)

    def _pair(self, issued: Issued, transfer: SimulatedTransfer, at: int) -> None:
        """Match the n-th send from one rank to another with the n-th receive, per communicator."""
        mine, peer = transfer.group.local[issued.rank.rank], transfer.peer
        source, target = (mine, peer) if transfer.sends else (peer, mine)
        others = self._unmatched[issued.stream, source, target, not transfer.sends]
        if not others:
            self._unmatched[issued.stream, source, target, transfer.sends].append((issued, at, transfer.took_ns))
            return
        other, other_at, took_ns = others.popleft()
        met = max(at, other_at) + took_ns
        for side in (issued, other):
            side.latest = max(side.latest, met)
            side.open -= 1
            if not side.open:
                self._end(side, side.latest)

    def _end(self, issued: Issued, at: int) -> None:
        run = issued.rank
        issued.ended = run.free_ns[issued.stream] = at
        waiting = run.streams[issued.stream]
        waiting.popleft()
        if waiting:
            self._arrivals.append((waiting[0], max(waiting[0].dependency, at)))
        if issued.awaited:
            self._movable.append(run)


def _agree(members: Sequence[Issued]) -> bool:
    agreements = {m.operation.agreement for m in members if isinstance(m.operation, Collective)}
    return len(agreements) == 1
