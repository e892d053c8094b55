"""Probe `flight_recorder`: what every rank recorded of its collectives, and where the records part."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ddx_tools.alignment.analyse import analyse
from ddx_tools.flight_records.endpoints import read_endpoints
from ddx_tools.flight_records.files import read_paths
from ddx_tools.flight_records.live import read_job, snapshot_of
from ddx_tools.flight_records.material import DUMP, record_rows
from ddx_tools.hosts.base import Host
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Probe, ProbeArgs, Raw
from ddx_tools.probes.jobs import find_jobs, select_job


class FlightRecorderArgs(ProbeArgs):
    """Arguments of `flight_recorder`."""

    endpoint: list[str] = Field(
        default_factory=list,
        description="RANK=URL of a worker server of torch.distributed.debug, once for each rank.",
    )
    frames: Literal["auto", "all", "none"] = Field(
        "auto",
        description="Ask live ranks for call sites: where they decide, all, or none (frames cost seconds).",
    )


def capture(host: Host, args: FlightRecorderArgs) -> Raw:
    """Read files and directories of the target, named endpoints, or else the ranks of the live job."""
    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    pids = [item for item in args.target if item.isdigit()]
    if paths:
        read_paths(host, raw, paths)
    if args.endpoint:
        read_endpoints(host, raw, args.endpoint)
    if pids or not (paths or args.endpoint):
        job = select_job(find_jobs(snapshot_of(host.processes().data)), pids)
        read_job(host, raw, job, frames=args.frames)
    if not raw.of(DUMP):
        raw.status = ProbeStatus.NO_DATA
    return raw


PROBE: Probe[FlightRecorderArgs] = Probe(
    id="flight_recorder",
    title="Flight records",
    description="Compare what every rank recorded of its collectives (PyTorch flight recorder, Gloo or NCCL): "
    "which rank never entered one, where operations, sizes, data types or call sites differ, and which rank all "
    "waiting leads back to. Reads live jobs of `ddx run`, dump files and directories (nccl_trace_rank_*, "
    "comm_lib_trace_rank_*, JSON), and torch.distributed.debug endpoints.",
    args=FlightRecorderArgs,
    finding_codes=(
        "collective.operation_mismatch",
        "collective.shape_mismatch",
        "collective.dtype_mismatch",
        "collective.call_site_shift",
        "collective.missing_ranks",
        "collective.peers_wait",
        "collective.all_entered",
        "collective.wait_chain",
        "p2p.circular_wait",
        "p2p.unmatched",
        "records.not_simultaneous",
        "records.consistent",
        "records.rank_missing",
    ),
    capture=capture,
    parse=record_rows,
    table=(
        "SELECT name, any_value(description) AS description, any_value(members) AS members, "
        "list(rank ORDER BY rank) AS recorded_by, min(last_enqueued) AS first_rank_at, "
        "max(last_enqueued) AS last_rank_at FROM groups GROUP BY group_key, name ORDER BY name"
    ),
    analyse=analyse,
)
