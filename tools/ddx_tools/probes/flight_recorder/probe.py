"""Probe `flight_recorder`: every rank's record of its collectives, and where the records diverge."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Literal

from pydantic import Field

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import DdxError
from ddx_tools.probes.declaration import Export, Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Batches, Raw


class FlightRecorderArgs(ProbeArgs):
    """Arguments of `flight_recorder`."""

    endpoint: list[str] = Field(
        default_factory=list,
        description="RANK=URL of a torch.distributed.debug worker server, once for each rank.",
    )
    debug_server: str | None = Field(
        None,
        description="HOST:PORT of torch's debug server on rank 0 (torch.distributed.debug.start_debug_server): "
        "records of all ranks through this one address.",
    )
    rank_pattern: str | None = Field(
        None,
        description="Regular expression that finds the rank in file names: one group around its digits, or groups "
        "named rank and host. If it contains a slash, it is matched against the whole path.",
    )
    frames: Literal["auto", "all", "none"] = Field(
        "auto",
        description="Live ranks to ask for call sites: auto (where they decide something), all, or none. Frames cost "
        "seconds.",
    )


def capture(host: Host, args: FlightRecorderArgs) -> Raw:
    """Capture the records in files and directories of the target, from named endpoints, or from the live job's
    ranks."""
    from ddx_tools.parsers.flight_records.fr_origin import RankPattern
    from ddx_tools.probes.flight_recorder.files import read_paths
    from ddx_tools.probes.flight_recorder.material import DUMP

    raw = Raw(host.name)
    if args.paths:
        if args.rank_pattern is not None:
            RankPattern.parse(args.rank_pattern)  # rejects an invalid pattern
        read_paths(host, raw, args.paths, args.rank_pattern)
    if args.endpoint:
        from ddx_tools.probes.flight_recorder.endpoints import read_endpoints

        read_endpoints(host, raw, args.endpoint)
    if args.debug_server:
        from ddx_tools.probes.flight_recorder.endpoints import read_server

        read_server(host, raw, args.debug_server)
    if args.pids or not (args.paths or args.endpoint or args.debug_server):
        from ddx_tools.probes.flight_recorder.live import read_job
        from ddx_tools.sources.job_target import job_on

        read_job(host, raw, job_on(host, args.pids), frames=args.frames)
    if not raw.of(DUMP):
        raw.status = ProbeStatus.NO_DATA
    return raw


def parse(raw: Raw) -> Batches:
    """Yield the rows of all records as they are decoded."""
    from ddx_tools.probes.flight_recorder.material import record_rows

    return record_rows(raw, meanwhile=_get_ready)


def _get_ready() -> None:
    """Import and load what the later steps need: it takes as long as reading dozens of records."""
    from ddx_tools.diagnosis.playbook import load_playbooks

    for module in ("analysis.collectives.records.analyse", "probes.flight_recorder.group_table"):
        import_module(f"ddx_tools.{module}")
    with suppress(DdxError):  # the next use of the playbooks reports it
        load_playbooks()


PROBE: Probe[FlightRecorderArgs] = Probe(
    id="flight_recorder",
    title="Flight records",
    description="Which rank an NCCL timeout or a hanging collective waits for: compares what every rank recorded "
    "(PyTorch flight recorder, Gloo or NCCL): which rank never entered, where operations, sizes, data types or call "
    "sites differ, and which rank all waiting leads to. Reads live jobs under `ddx run`, dump files, directories and "
    "archives of them (nccl_trace_rank_*, comm_lib_trace_rank_*, JSON, gzip, zstd, tar, zip), and endpoints and pages "
    "of torch.distributed.debug.",
    args=FlightRecorderArgs,
    capture=capture,
    parse=parse,
    rests_on=("fr_dumps",),
    table=Later("ddx_tools.probes.flight_recorder.group_table:group_rows"),
    most_rows=40,
    rest="every operation of every group is in the trace that --perfetto writes",
    examples={
        "dumps/": "a directory with nccl_trace_rank_*, comm_lib_trace_rank_*, *.pkl, *.json; other files are ignored",
        "dumps.tar.gz more.zip rank7.pkl.zst": "archives, compressed files and plain files, in any mixture",
        "dumps/ --rank-pattern 'host(\\d+)'": "file names that hide the rank",
        "--endpoint 0=http://node0:40000 --endpoint 1=http://node1:40000": "servers of torch.distributed.debug",
        "4242 --perfetto trace.json.gz": "a live job that `ddx run` started, also written as a timeline",
    },
    kinds=("dump", "header", "pickle", "empty", "table"),
    about_files=frozenset({"rank_pattern"}),
    exports={
        "perfetto": Export(
            help="Write a trace to this file (.gz: compressed): a track for each rank and process group. "
            "Open it at https://ui.perfetto.dev, which keeps it in your browser.",
            write=Later("ddx_tools.probes.flight_recorder.perfetto:trace_of"),
        )
    },
    analyse=Later("ddx_tools.analysis.collectives.records.analyse:analyse"),
)
