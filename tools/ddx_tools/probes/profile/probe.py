"""Probe `profile`: where the time of a step goes, per rank, from profiler traces."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.probes.declaration import Export, Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw

_HOW_TO = (
    "There is no trace to read. For a live job: ddx profile --record PID. With Nsight Systems: nsys export --type "
    "sqlite FILE.nsys-rep; then: ddx profile FILE.sqlite. Or trace a few steps on every rank: "
    "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=5, warmup=2, active=3, repeat=1), "
    'on_trace_ready=lambda p: p.export_chrome_trace(f"trace_rank{torch.distributed.get_rank()}.json.gz")) as prof: … '
    "prof.step() after each step; then: ddx profile DIR"
)


class ProfileArgs(ProbeArgs):
    """Arguments of `profile`."""

    target: list[str] = Field(
        default_factory=list,
        description="Traces of torch.profiler (Kineto, .json or .json.gz), SQLite exports of Nsight Systems (nsys "
        "export --type sqlite), samples (py-spy record --format raw), directories or archives of them; with --record, "
        "a pid of the live job.",
    )
    record: bool = Field(
        False,
        description="Profile a live job: sample all ranks' stacks (py-spy pauses them 25 times a second) and, for "
        "jobs under `ddx run` or with --endpoint, take a torch profiler trace. Not while the job profiles itself.",
    )
    seconds: float = Field(5.0, ge=1, le=60, description="Duration of the samples and of the trace, each.")
    endpoint: list[str] = Field(
        default_factory=list,
        description="With --record: RANK=URL of a torch.distributed.debug worker server, once for each rank.",
    )


def capture(host: Host, args: ProfileArgs) -> Raw:
    """Find the traces among files and directories, which are read later, when rows are made; with `record`, profile a
    live job."""
    from ddx_tools.probes.profile.material import read_paths

    raw = Raw(host.name)
    if args.record:
        from ddx_tools.probes.profile.record import record_endpoints, record_job

        if args.endpoint:
            record_endpoints(host, raw, args.endpoint, args.seconds)
        if args.target or not args.endpoint:
            record_job(host, raw, args.target, args.seconds)
    elif args.paths:
        read_paths(host, raw, args.paths)
    else:
        raw.problems.append(_HOW_TO)
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[ProfileArgs] = Probe(
    id="profile",
    title="Profiler traces",
    description="Why a training step is slow: where its time goes in traces of torch.profiler (Kineto) or Nsight "
    "Systems (nsys, as SQLite) of one or all ranks. Takes any size, also gzipped, from GPU jobs (NCCL) "
    "and CPU jobs (Gloo). Shows computing, exposed communication and how much of it is waiting for a late "
    "rank (straggler, on aligned clocks), overlap, copies, the data loader, GPU idle time; collectives "
    "with their bandwidth, DDP's buckets, kernel classes.",
    args=ProfileArgs,
    capture=capture,
    parse=Later("ddx_tools.probes.profile.material:profile_rows"),
    analyse=Later("ddx_tools.probes.profile.findings:profile_findings"),
    rests_on=("trace_ranks", "stack_samples"),
    table=Later("ddx_tools.probes.profile.table:rows_for_person"),
    most_rows=60,
    rest="every step and collective is in the trace that --perfetto writes",
    examples={
        "traces/": "a directory of trace_rank*.json or *.pt.trace.json.gz of all ranks",
        "rank0.json.gz": "one rank: waiting and sending cannot be distinguished",
        "trace_rank0.sqlite trace_rank1.sqlite": "two ranks from Nsight Systems: nsys export --type sqlite "
        "trace_rank0.nsys-rep",
        "--record 4242 --flame stacks.txt": "a live job, by the pid of its launcher or of any rank",
        "traces/ --perfetto all.json.gz": "also writes the steps and collectives of all ranks, on one clock",
    },
    kinds=("trace", "stack samples"),
    shell_only=frozenset({"record", "seconds", "endpoint"}),
    exports={
        "perfetto": Export(
            help="Write the steps and collectives of all ranks, on one clock, as one trace to this file (.gz: "
            "compressed). Open it at https://ui.perfetto.dev.",
            write=Later("ddx_tools.probes.profile.perfetto:trace_of"),
        ),
        "flame": Export(
            help="Write the samples of all ranks as collapsed stacks to this file, for https://www.speedscope.app or "
            "flamegraph.pl.",
            write=Later("ddx_tools.probes.profile.samples:collapsed"),
        ),
    },
)
