"""The output of watchdogs in a hang: ProcessGroupNCCL.cpp of torch 2.10, as in `tests/fixtures/logs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddx_evals.simulator.engine import Issued, RankRun
from ddx_evals.simulator.training.calls import numel
from ddx_evals.simulator.training.instructions import Batch, Collective, SimulatedTransfer, Sizes
from ddx_evals.simulator.training.mesh import SimulatedMesh

_OPERATIONS = {
    "all_reduce": "ALLREDUCE",
    "all_reduce_barrier": "ALLREDUCE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "broadcast": "BROADCAST",
    "gather": "GATHER",
}
_PREFIX = "[rank$rank]:[E$clock ProcessGroupNCCL.cpp:"
_DISCOVERED_WITHIN_NS = 120 * 10**9
_SECOND_NS = 10**9


class Line(NamedTuple):
    """A text that a rank prints at a moment in true time."""

    at_ns: int
    rank: int
    text: str


def first_pending(run: RankRun, at_ns: int) -> Issued | None:
    """The oldest unfinished operation of a rank at a moment, if any."""
    return next((i for i in run.issued if i.created <= at_ns and (i.ended is None or i.ended > at_ns)), None)


def watchdog_lines(runs: Sequence[RankRun], mesh: SimulatedMesh, timeout_s: int, first_ns: int) -> Iterator[Line]:
    """Yield the watchdog output of every rank from `first_ns` on, when the first timeout was found.

    Ranks that also timed out say so; the others report the signal.
    """
    first_rank = min(
        (pending.created, run.rank) for run in runs for pending in [first_pending(run, first_ns)] if pending
    )[1]
    for run in runs:
        pending = first_pending(run, first_ns)
        expired_ns = pending.created + timeout_s * _SECOND_NS if pending else 0
        if pending and expired_ns < first_ns + _DISCOVERED_WITHIN_NS:
            at_ns = max(first_ns, expired_ns) + run.rank % 97 * 1_000_000
            yield from _timed_out(run, pending, mesh, timeout_s, at_ns)
        else:
            at_ns = first_ns + _SECOND_NS + run.rank % 89 * 1_000_000
            yield Line(at_ns, run.rank, _signalled(run, first_rank))


def aborts(line: Line, timeout_s: int, runs: Sequence[RankRun], mesh: SimulatedMesh) -> Line | None:
    """How a rank aborts a minute after its watchdog's line; None if it waited for nothing."""
    pending = first_pending(runs[line.rank], line.at_ns)
    if pending is None:
        return None
    caught = _caught(pending, timeout_s, line.at_ns)
    return Line(
        line.at_ns + 60 * _SECOND_NS,
        line.rank,
        f"{_PREFIX}744] [Rank $rank] To avoid data inconsistency, we are taking the entire process down.\n"
        f"{_PREFIX}2057] {_group(pending, mesh, line.rank)} Process group watchdog thread terminated with exception: "
        f"{caught}\nterminate called after throwing an instance of 'c10::DistBackendError'",
    )


def _timed_out(run: RankRun, pending: Issued, mesh: SimulatedMesh, timeout_s: int, at_ns: int) -> Iterator[Line]:
    index = pending.operation.group.index
    works = [i for i in run.issued if i.operation.group.index == index and i.created <= at_ns]
    enqueued = max(_seq(i) for i in works)
    completed = max((_seq(i) for i in works if i.ended and i.ended <= at_ns), default=-1)
    yield Line(
        at_ns,
        run.rank,
        f"{_PREFIX}688] {_caught(pending, timeout_s, at_ns)}\n"
        f"{_PREFIX}2281] {_group(pending, mesh, run.rank)}  failure detected by watchdog at work sequence id: "
        f"{_seq(pending)} PG status: last enqueued work: {enqueued}, last completed work: {completed}",
    )


def _signalled(run: RankRun, by_rank: int) -> str:
    of_world = [i for i in run.issued if isinstance(i.operation, Collective) and i.operation.group.index == 0]
    world = "[PG ID 0 PG GUID 0(default_pg) Rank $rank]"
    return (
        f"{_PREFIX}1858] {world} Observed flight recorder dump signal from another rank via TCPStore.\n"
        f"{_PREFIX}1927] {world} Received a dump signal due to a collective timeout from  rank {by_rank} and we will "
        f"try our best to dump the debug info. Last enqueued NCCL work: {len(of_world)}, last completed NCCL work: "
        f"{sum(i.ended is not None for i in of_world)}."
    )


def _caught(pending: Issued, timeout_s: int, at_ns: int) -> str:
    name, sizes_in, sizes_out = _described(pending)
    ran_ms = max(timeout_s * 1000 + 11, (at_ns - pending.created) // 1_000_000)
    return (
        f"[Rank $rank] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={_seq(pending)}, OpType={name}, "
        f"NumelIn={_numel(sizes_in)}, NumelOut={_numel(sizes_out)}, Timeout(ms)={timeout_s * 1000}) ran for {ran_ms} "
        "milliseconds before timing out."
    )


def _described(pending: Issued) -> tuple[str, Sizes, Sizes]:
    operation = pending.operation
    if isinstance(operation, Collective):
        return _OPERATIONS.get(operation.name, operation.name.upper()), operation.inputs, operation.outputs
    if isinstance(operation, SimulatedTransfer):
        return "SEND" if operation.sends else "RECV", operation.sizes, operation.sizes
    assert isinstance(operation, Batch)
    return "COALESCED", [], []


def _numel(sizes: Sizes) -> int:
    return numel([tuple(shape) for shape in sizes if isinstance(shape, list)])


def _seq(issued: Issued) -> int:
    return issued.collective_seq if isinstance(issued.operation, Collective) else issued.p2p_seq


def _group(pending: Issued, mesh: SimulatedMesh, rank: int) -> str:
    group = pending.operation.group
    return f"[PG ID {mesh.pg_ids(rank)[group.index]} PG GUID {group.name}({group.description}) Rank $rank]"
