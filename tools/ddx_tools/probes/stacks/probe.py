"""Probe `stacks`: what every rank is doing, and which rank is the odd one out."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.probes.declaration import Export, Later, Probe, ProbeArgs


class StacksArgs(ProbeArgs):
    """Arguments of `stacks`."""

    looks: int = Field(1, ge=1, le=2, description="Number of samples: two show which ranks move.")
    apart_s: float = Field(0.7, ge=0.1, le=60, description="Seconds between two samples.")
    confirm_s: float = Field(
        0.0,
        ge=0,
        le=120,
        description="If ranks wait and none moved, wait until they have been stuck for this many seconds (the kernel "
        "knows since when), then take one more sample.",
    )
    debug_server: str | None = Field(
        None,
        description="HOST:PORT of torch's debug server (torch.distributed.debug.start_debug_server) on rank 0: stacks "
        "of all ranks through this one address, without permission to attach.",
    )
    among_others: bool = Field(
        False, description="Other hosts have ranks of the job too: confirm even if no rank here waits."
    )


PROBE: Probe[StacksArgs] = Probe(
    id="stacks",
    title="Stacks of all ranks",
    description=(
        "Start here for a live job that hangs, is stuck or frozen: dumps the Python stack of every rank (py-spy, all "
        "ranks in parallel), says what each is doing (which collective, data loading, checkpoint, breakpoint, lock, "
        "sleep, …), groups ranks that are in the same place and names the ones that differ, with their line of code."
    ),
    args=StacksArgs,
    shell_only=frozenset({"among_others"}),
    capture=Later("ddx_tools.probes.stacks.capture:capture_stacks"),
    parse=Later("ddx_tools.probes.stacks.rows:stack_rows"),
    rests_on=("stack_threads", "unread"),
    analyse=Later("ddx_tools.probes.stacks.findings:stack_findings"),
    exports={
        "speedscope": Export(
            help="Write a flame graph of all stacks to this file (.gz: compressed): equal stacks once, as wide as the "
            "ranks in them. Open it at https://www.speedscope.app, which keeps it in your browser.",
            write=Later("ddx_tools.probes.stacks.speedscope:flame_graph_of"),
        )
    },
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
