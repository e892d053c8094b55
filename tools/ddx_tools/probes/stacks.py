"""Probe `stacks`: what every rank is doing, and who is the odd one out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ddx_tools.model import Finding
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows
from ddx_tools.sources.hosts.base import Host

if TYPE_CHECKING:
    from ddx_tools.store import Store


class StacksArgs(ProbeArgs):
    """Arguments of `stacks`."""

    looks: int = Field(1, ge=1, le=2, description="Look once, or twice to see which ranks move.")
    apart_s: float = Field(0.7, ge=0.1, le=60, description="Seconds between two looks.")
    confirm_s: float = Field(
        0.0,
        ge=0,
        le=120,
        description="If ranks wait and none moved, wait until they have stood still for this many seconds (the kernel "
        "says for how long they have already), and look once more.",
    )
    among_others: bool = Field(
        False, description="Other hosts have ranks of the job, too: confirm it also where none waits."
    )


def capture(host: Host, args: StacksArgs) -> Raw:
    """Dump all ranks in parallel, once or several times; with paths as target, read the dumps among these files."""
    from ddx_tools.stacks.capture import capture_stacks

    return capture_stacks(host, args.target, **args.model_dump(exclude={"target"}))


def parse(raw: Raw) -> Rows:
    """Rows of `stack_threads`, `stack_frames`, `sources`, `unread` and `outputs`."""
    from ddx_tools.stacks.rows import stack_rows

    return stack_rows(raw)


def analyse(store: Store) -> list[Finding]:
    """What the ranks do, and who stands elsewhere than its peers."""
    from ddx_tools.stacks.findings import stack_findings

    return stack_findings(store)


PROBE = Probe(
    id="stacks",
    title="Stacks of all ranks",
    description=(
        "Start here for a live job that hangs, is stuck or frozen: dumps the Python stack of every rank (py-spy, all "
        "ranks in parallel), says what each is doing (which collective, data loading, checkpoint, breakpoint, lock, "
        "sleep, …), groups ranks that are in the same place and names the odd ones with their line of code."
    ),
    args=StacksArgs,
    shell_only=frozenset({"among_others"}),
    finding_codes=(
        "job.progressing",
        "job.starting",
        "rank.unreadable",
        "rank.stopped",
        "rank.uninterruptible",
        "rank.outside_collective",
        "rank.outside_in_every_look",
        "rank.work_counted",
        "rank.lock_wait",
        "rank.gil_held",
        "rank.held",
        "rank.worker_stuck",
        "collective.peers_wait",
        "collective.operation_mismatch",
        "collective.call_site_mismatch",
        "collective.all_entered",
        "p2p.circular_wait",
        "p2p.unmatched",
        "p2p.numbered_within_group",
        "pipeline.schedule_differs",
    ),
    capture=capture,
    parse=parse,
    rests_on=("stack_threads", "unread"),
    analyse=analyse,
    table=(
        "SELECT list(rank ORDER BY rank) AS ranks, activity, operation, "
        "any_value(user_file) || ':' || user_line AS place, user_function AS function, "
        "any_value(user_source) AS code, bool_or(moved) AS moved, any_value(state) AS state, "
        "round(min(blocked_s), 1) AS blocked_s FROM (SELECT * FROM stack_threads WHERE is_main "
        "QUALIFY row_number() OVER (PARTITION BY host, pid ORDER BY snapshot DESC) = 1) "
        "GROUP BY role, activity, operation, user_line, user_function, user_stack "
        "ORDER BY role <> 'rank', count(*) DESC, min(rank)"
    ),
)
