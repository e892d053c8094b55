"""Probe `preflight`: test the process group before a job, or between two failures."""

from __future__ import annotations

from ddx_tools.probes.declaration import Export, Later, Probe
from ddx_tools.probes.preflight.args import PreflightArgs

PROBE: Probe[PreflightArgs] = Probe(
    id="preflight",
    title="Preflight",
    description="Tests the process group before a job, or between two failures: starts ranks (nccl or gloo), checks "
    "the result of every collective and point-to-point operation in several data types, measures latency and "
    "bandwidth as nccl-tests define them against what the links should give, and names the rank that is wrong, slow "
    "or missing. Also reads the output of nccl-tests (all_reduce_perf, …). It starts processes on this host that use "
    "its CPUs, GPUs and network for about half a minute, and ends all of them.",
    args=PreflightArgs,
    capture=Later("ddx_tools.probes.preflight.rows:capture_preflight"),
    parse=Later("ddx_tools.probes.preflight.rows:preflight_rows"),
    analyse=Later("ddx_tools.probes.preflight.findings:preflight_findings"),
    performs=Later("ddx_tools.probes.preflight.run:run_preflight"),
    read_only=False,
    sends_traffic=True,
    shell_only=frozenset({"launcher", "directory", "step_deadline_s", "start_deadline_s"}),
    table=Later("ddx_tools.analysis.bandwidth.measured:table"),
    most_rows=60,
    rest="--json, or ask the evidence store: SELECT * FROM preflight_steps",
    examples={
        "--nproc 4": "four ranks on this host",
        "-- torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500": "on two "
        "hosts: run it on each",
        "--nproc 8 --dims dp=2,tp=4 --pairs": "also test each group of a mesh, and every pair of ranks",
        "all_reduce.txt --svg curve.svg": "output of nccl-tests, with its bandwidth curve as a picture",
    },
    exports={
        "svg": Export(
            help="Write the bandwidth curve as a picture (SVG).",
            write=Later("ddx_tools.analysis.bandwidth.measured:write_curve"),
        )
    },
)
