"""Probe `memory`: what holds GPU and host memory, what grows, which rank holds more, what is unsharded."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, RawItem


class MemoryArgs(ProbeArgs):
    """Arguments of `memory`."""

    target: list[str] = Field(
        default_factory=list,
        description="Memory snapshots (torch.cuda.memory._dump_snapshot), memory reports, directories of them, or a "
        "pid of a live job under `ddx run`. Empty: the job on this host.",
    )
    plan: str = Field(
        "",
        description="Only estimate: parameters=8e9,layers=32,hidden=4096,sequence=8192,vocabulary=128256,dp_shard=8,"
        "tp=1,cp=1,pp=1,batch=1,recompute=none,gpu_gib=80.",
    )
    looks: int = Field(1, ge=1, le=100, description="How many times to ask a live job.")
    interval_s: float = Field(5.0, ge=0, le=60, description="Seconds between two samples.")


def capture(host: Host, args: MemoryArgs) -> Raw:
    """Capture snapshots and reports among files and directories, or ask the ranks of a live job."""
    from ddx_tools.probes.memory.material import PLAN, read_job, read_paths

    raw = Raw(host.name)
    if args.plan:
        from ddx_tools.probes.memory.estimate import parse_plan

        plan = parse_plan(args.plan)
        raw.items.append(RawItem(PLAN, plan.model_dump_json().encode(), "plan"))
        return raw
    if args.paths:
        read_paths(host, raw, args.paths)
    else:
        from ddx_tools.sources.job_target import job_on

        read_job(host, raw, job_on(host, args.target), args.looks, args.interval_s)
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[MemoryArgs] = Probe(
    id="memory",
    title="Memory",
    description="Why a GPU or host runs out of memory (CUDA OOM): reads CUDA memory snapshots (_dump_snapshot "
    "pickles) of all ranks: what holds it (parameters, gradients, optimizer state, activations, buffers), the peak "
    "and its line, fragmentation; and ranks' own reports: growth per step (leak), a rank that holds more than the "
    "others, parameters that FSDP leaves unsharded, by module. --plan: what a parallel plan needs, and what would "
    "fit.",
    args=MemoryArgs,
    capture=capture,
    parse=Later("ddx_tools.probes.memory.material:memory_rows"),
    analyse=Later("ddx_tools.probes.memory.findings:memory_findings"),
    rests_on=("memory_devices", "memory_series", "memory_parameters", "memory_plans"),
    table=Later("ddx_tools.probes.memory.findings:memory_table"),
    most_rows=48,
    rest="name fewer files; an agent asks the tables memory_holders and memory_series (query_evidence)",
    examples={
        "mem_rank0.pickle mem_rank1.pickle": "files from torch.cuda.memory._dump_snapshot",
        "reports/": "memory-rank*.jsonl of ddx_tools.payloads.memory_report: growth, skew, what is unsharded",
        "--plan parameters=8e9,layers=32,hidden=4096,sequence=8192,dp_shard=8": "what a plan would need on each GPU",
        "4242 --looks 5": "a live job that `ddx run` started",
    },
    kinds=("memory snapshot", "memory report"),
)
