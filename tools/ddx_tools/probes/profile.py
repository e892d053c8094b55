"""Probe `profile`: where the time of a step goes, by rank, out of the profiler's traces."""

from __future__ import annotations

from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Export, Later, Probe, ProbeArgs, Raw
from ddx_tools.sources.hosts.base import Host

_HOW_TO = (
    "There is no trace to read. Take one of some steps on every rank: "
    "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=3, repeat=1), "
    'on_trace_ready=lambda p: p.export_chrome_trace(f"trace_rank{torch.distributed.get_rank()}.json.gz")) as prof: … '
    "prof.step() after each step; then: ddx profile DIR"
)


class ProfileArgs(ProbeArgs):
    """The target: traces of torch.profiler (Kineto, .json or .json.gz), directories or archives of them."""


def capture(host: Host, args: ProfileArgs) -> Raw:
    """Find the traces among files and directories; they stay where they are until rows are made of them."""
    from ddx_tools.profiles.material import read_paths

    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    if paths:
        read_paths(host, raw, paths)
    else:
        raw.problems.append(_HOW_TO)
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[ProfileArgs] = Probe(
    id="profile",
    title="Profiler traces",
    description="Why a training step is slow: where its time goes in torch.profiler (Kineto) traces of one or all "
    "ranks, of any size, gz too, of GPU jobs (NCCL) and CPU jobs (Gloo): computing, communication that nothing hides "
    "and what of it is waiting for a late rank (straggler, on aligned clocks), overlap, copies, the data loader, idle "
    "time of the GPU; collectives with their bandwidth, DDP's buckets, classes of kernels.",
    args=ProfileArgs,
    capture=capture,
    parse=Later("ddx_tools.profiles.material:trace_rows"),
    analyse=Later("ddx_tools.profiles.findings:profile_findings"),
    rests_on=("trace_ranks",),
    table=Later("ddx_tools.profiles.findings:rows_for_person"),
    most_rows=60,
    rest="every step and collective is in the trace that --perfetto writes",
    examples={
        "traces/": "a directory of trace_rank*.json or *.pt.trace.json.gz of all ranks",
        "rank0.json.gz": "one rank: what waits and what sends cannot be told apart then",
        "traces/ --perfetto all.json.gz": "and the steps and collectives of all ranks on one clock",
    },
    kinds=("trace",),
    exports={
        "perfetto": Export(
            help="Write the steps and collectives of all ranks, on one clock, as one trace to this file (.gz: "
            "compressed). Open it at https://ui.perfetto.dev.",
            write=Later("ddx_tools.profiles.perfetto:trace_of"),
        )
    },
)
