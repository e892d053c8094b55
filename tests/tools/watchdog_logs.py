"""Watchdog lines as ProcessGroupNCCL.cpp formats them, constructed after its source of the version that a name says.

No NCCL job can be recorded on a machine without GPUs; the sentences are those of the C++ format strings, the numbers
are made up.
"""

from __future__ import annotations

WORLD = "0(default_pg)"


def _head(rank: int | None, place: int) -> str:
    label = "" if rank is None else f"[rank{rank}]:"
    return f"{label}[E1121 10:10:00.512345678 ProcessGroupNCCL.cpp:{place}] "


def timeout(
    rank: int | None,
    seq: int,
    op: str = "ALLREDUCE",
    numel: int | tuple[int, int] = 262144,
    *,
    member: int | None = None,
    limit_ms: int = 600_000,
) -> str:
    """torch 2.1 to 2.13."""
    numel_in, numel_out = numel if isinstance(numel, tuple) else (numel, numel)
    return (
        f"{_head(rank, 688)}[Rank {rank if member is None else member}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel_in}, NumelOut={numel_out}, Timeout(ms)={limit_ms}) "
        f"ran for {limit_ms + 43} milliseconds before timing out.\n"
    )


def progress(
    rank: int, seq: int, enqueued: int, completed: int, *, group: str = WORLD, member: int | None = None
) -> str:
    """torch 2.6 to 2.13, behind the line of the timeout."""
    own = rank if member is None else member
    number = "0" if group == WORLD else "2"
    return (
        f"{_head(rank, 2281)}[PG ID {number} PG GUID {group} Rank {own}]  failure detected by watchdog at work "
        f"sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
    )


def dump_signal(rank: int, from_rank: int, enqueued: int, completed: int) -> str:
    """torch 2.5 to 2.13, of a rank that did not time out itself."""
    return (
        f"{_head(rank, 1858)}[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective "
        f"timeout from  rank {from_rank} and we will try our best to dump the debug info. Last enqueued NCCL work: "
        f"{enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages of "
        "collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the "
        "scheduled collective, for some reason, didn't run. \n"
    )


def timed_out(rank: int, seq: int, op: str = "ALLREDUCE", numel: int | tuple[int, int] = 262144) -> str:
    """A rank that waits in a collective of the default group: both lines of torch 2.6 to 2.13."""
    return timeout(rank, seq, op, numel) + progress(rank, seq, seq, seq - 1)


def old_timeout(rank: int, seq: int | None, op: str = "ALLREDUCE") -> str:
    """torch 1.12 to 2.0, which names no group; without a number torch 1.10."""
    number = "" if seq is None else f"SeqNum={seq}, "
    return (
        f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL({number}"
        f"OpType={op}, Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out.\n"
    )


def desync(member: int, op: str, seq: int, *lines: str) -> str:
    """TORCH_NCCL_DESYNC_DEBUG=1: TraceUtils.h, retrieveDesyncReport."""
    return f"\t - [{member}] Timeout at collective: {op}, #{seq}\n" + "".join(f"{line}\n" for line in lines)


LAGGING = "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
SNAPSHOT = "\t - Snapshot of ranks' latest states:"
