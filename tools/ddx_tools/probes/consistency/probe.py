"""Probe `consistency`: the values that ranks hold, compared through the fingerprints they wrote."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.probes.declaration import PATH, Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw


class ConsistencyArgs(ProbeArgs):
    """Arguments of `consistency`."""

    target: list[str] = Field(default_factory=list, description="Fingerprint files, or directories of them.")
    against: str = Field(
        "", description="A directory of another run to compare with at the same steps.", json_schema_extra=PATH
    )


def capture(host: Host, args: ConsistencyArgs) -> Raw:
    """Capture the files that ddx_consistency wrote."""
    from ddx_tools.probes.consistency.material import read_files

    raw = Raw(host.name)
    read_files(host, raw, args.paths, run=0)
    if args.against:
        read_files(host, raw, [args.against], run=1)
    return raw


PROBE: Probe[ConsistencyArgs] = Probe(
    id="consistency",
    title="Values that ranks share",
    description="Compares what ranks hold of a model at sampled steps, for training that runs but computes something "
    "wrong: parameters, gradients before and after the reduction, buffers, optimizer state, batches, random states, "
    "placements of DTensors. Names the first step, tensor and ranks that differ, the axis of the mesh, and whether a "
    "gradient is a sum instead of a mean or was reduced over the wrong ranks. Reads the files that `ddx run "
    "--consistency STEPS -- …`, or one line in the program (docs/consistency.md), wrote; adds no collective to the "
    "job.",
    args=ConsistencyArgs,
    capture=capture,
    parse=Later("ddx_tools.probes.consistency.material:print_rows"),
    analyse=Later("ddx_tools.probes.consistency.compare:consistency_findings"),
    rests_on=("fingerprints",),
    table="SELECT step, what, count(DISTINCT name) AS tensors, count(DISTINCT rank) AS ranks, "
    "sum(non_finite) AS non_finite FROM fingerprints WHERE run = 0 AND step IS NOT NULL "
    "AND what IN ('parameter', 'gradient', 'own_gradient', 'buffer', 'optimizer', 'batch') "
    "GROUP BY step, what ORDER BY step, what",
    kinds=("fingerprints",),
    examples={
        "ddx-runs/1/": "what the ranks of one run hold",
        "two-gpus/ --against one-gpu/": "the step and tensor where two runs first differ",
    },
)
