"""Absent ranks: stuck outside any collective, dead, gone, or with a hung GPU."""

from __future__ import annotations

from ddx_evals.simulator.faults.draft import Draft, Injection, nth, place
from ddx_evals.simulator.training.instructions import Sign
from ddx_evals.simulator.training.mesh import RANKS_A_HOST

STUCK_ELSEWHERE = (
    "slow-rank-before-collective",
    "rank-skipped-collective",
    "dataloader-stuck",
    "filesystem-stalled",
    "python-deadlock",
    "gil-held",
    "process-stopped",
    "uneven-data",
    "module-skipped-on-rank",
    "graph-recompile-divergence",
    "rank-exited-early",
)
"""Causes that look the same in records: the rank issues nothing more, and nothing of it is pending."""

GONE = ("rank-crashed", "host-oom-killed", "rank-exited-early", "gil-held", "process-stopped")
GPU = ("gpu-hung", "gpu-kernel-fault", "gpu-fell-off-bus", "gpu-memory-error")
NETWORK = ("ib-link-fault", "ib-retry-exceeded", "packet-loss", "nvlink-fault", "firewall-or-unreachable")


def rank_stalled(draft: Draft) -> Injection | None:
    """The CPU of a rank, or of all ranks on a host, is stuck before an operation."""
    stopped = _stop(draft)
    return Injection(stopped, STUCK_ELSEWHERE, f"The CPU of ranks {stopped} never gets to their next operation.")


def rank_dead(draft: Draft) -> Injection | None:
    """A process, or all processes of a host, is gone and leaves no dump."""
    stopped = _stop(draft)
    causes = (*GONE, *STUCK_ELSEWHERE)
    return Injection(stopped, causes, f"Ranks {stopped} died and left no dump.", dead=frozenset(stopped))


def rank_exited_early(draft: Draft) -> Injection | None:
    """A rank has fewer batches: it finishes its work and writes a dump."""
    rank = draft.some_rank()
    del draft.programs[rank][draft.begins[rank][draft.some_step()] :]
    causes = ("uneven-data", "rank-exited-early", *STUCK_ELSEWHERE)
    return Injection((rank,), causes, f"Rank {rank} ran out of data at the end of a step.")


def frozen_completion(draft: Draft) -> Injection | None:
    """A rank's device fails: peers complete operations with it that it does not notice as complete, and it stops."""
    rank = draft.some_rank()
    places = list(draft.collectives(rank))
    if not places:
        return None
    index, _ = draft.choice.choice(places)
    draft.programs[rank].insert(index, Sign.CPU_STUCK)
    missed = draft.choice.randrange(1, 6)
    note = f"Rank {rank} stops, and its watchdog saw nothing of its last {missed} completions."
    return Injection((rank,), (*GPU, *STUCK_ELSEWHERE), note, frozen={rank: missed})


def gpu_stuck(draft: Draft) -> Injection | None:
    """A kernel between two collectives never ends on one rank; its CPU enqueues what follows."""
    rank = draft.some_rank()
    places = list(draft.collectives(rank))
    if not places:
        return None
    index, collective = draft.choice.choice(places)
    draft.programs[rank].insert(index, Sign.GPU_STUCK)
    return Injection(
        (rank,),
        (*GPU, "slow-rank-before-collective"),
        f"The main stream of rank {rank} never gets to the kernels that it enqueued.",
        decided=draft.timing,
        group=collective.group.name,
    )


def kernel_hang(draft: Draft) -> Injection | None:
    """All members run a collective's kernel and none ends, because of the network."""
    rank = draft.some_rank()
    places = list(draft.collectives(rank))
    if not places:
        return None
    index, collective = draft.choice.choice(places)
    key = nth(draft.programs[rank], index)
    return Injection(
        (),
        (*NETWORK, *GPU, "timeout-too-short"),
        f"All members of group {collective.group.name} are in its collective {key[1]}, and it never ends.",
        decided=False,
        group=collective.group.name,
        place=place(collective),
        never_ends=frozenset({key}),
    )


def _stop(draft: Draft) -> tuple[int, ...]:
    """Stop one rank anywhere in a step, or all ranks of a host at the beginning of one; return them."""
    hosts = draft.mesh.world_size // RANKS_A_HOST
    if hosts >= 3 and draft.choice.random() < 0.15:
        host, step = draft.choice.randrange(hosts), draft.some_step()
        stopped = tuple(range(host * RANKS_A_HOST, (host + 1) * RANKS_A_HOST))
        for rank in stopped:
            draft.programs[rank].insert(draft.begins[rank][step], Sign.CPU_STUCK)
        return stopped
    rank = draft.some_rank()
    program = draft.programs[rank]
    program.insert(draft.choice.randrange(len(program) * 2 // 5, len(program) * 9 // 10), Sign.CPU_STUCK)
    return (rank,)
