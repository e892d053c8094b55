"""Probe `native_stacks`: one process in depth, with its C frames or its local variables.

Separate from `stacks` because it holds the process longer (symbols of a torch process take seconds) and because local
variables may reveal data.
"""

from __future__ import annotations

from pydantic import Field

from ddx_tools.model.errors import HostError
from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, RawItem


class NativeStacksArgs(ProbeArgs):
    """Arguments of `native_stacks`."""

    ranks: list[int] = Field(default_factory=list, description="Ranks to dump. Empty: all ranks of the job.")
    show_locals: bool = Field(False, description="Show local variables instead of C frames. They may reveal data.")
    timeout_s: float = Field(30.0, ge=1, le=300, description="Deadline for each process, seconds.")


def capture(host: Host, args: NativeStacksArgs) -> Raw:
    """Take one deep dump of each requested rank, one after the other."""
    from ddx_tools.analysis.collectives.stacks.main_threads import STACK
    from ddx_tools.sources.job_target import job_on

    raw = Raw(host.name)
    for member in job_on(host, args.target).live:
        if member.pid is None or (args.ranks and member.rank not in args.ranks):
            continue
        facts = {"pid": member.pid, "rank": member.rank, "role": member.role, "look": 1, "taken_s": host.now()}
        how = {"native": not args.show_locals, "show_locals": args.show_locals}
        try:
            dump = host.stack(member.pid, **how, timeout_s=args.timeout_s)
            raw.items.append(RawItem(STACK, dump.data, dump.source, facts))
        except HostError as error:
            raw.failed(f"rank {member.rank} (pid {member.pid})", error, "its native stack stays unknown")
    return raw


PROBE = Probe(
    id="native_stacks",
    title="Native stacks and locals",
    description=(
        "Dump one or all ranks with native (C, C++, CUDA runtime) frames, or with local variables. Pauses each "
        "process for up to several seconds; use it after `stacks`, if Python frames do not show enough."
    ),
    args=NativeStacksArgs,
    capture=capture,
    parse=Later("ddx_tools.probes.stacks.rows:stack_rows"),
    analyse=lambda _: [],  # native frames are for reading
    read_only=False,
    table=(
        "SELECT rank, depth, function, file || ':' || line AS place, variables FROM stack_frames "
        "JOIN stack_threads USING (host, pid, snapshot, tid) WHERE is_main ORDER BY rank, pid, depth"
    ),
    rest="name fewer ranks (--ranks 3), or keep the material (--save BUNDLE): it has all threads",
)
