"""Probe `mesh`: the parallel dimensions of a job, where each rank is in them, and whether they fit."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw


class MeshArgs(ProbeArgs):
    """Arguments of `mesh`."""

    target: list[str] = Field(
        default_factory=list,
        description="Configuration files, launch scripts, logs, flight records, directories of them, or a pid of a "
        "live job. Empty, without --dims: the distributed job on this host.",
    )
    dims: str = Field(
        "",
        description="Dimensions, outermost first, -1 for the remainder: pp=2,dp_shard=-1,tp=8. Or an AReaL "
        "allocation: megatron:d2p2t4.",
    )
    framework: str = Field(
        "",
        description="Whose order the dimensions are in: torchtitan, torchtitan-0.2.0, archon, areal-fsdp, megatron, "
        "megatron-tp-pp-dp, deepspeed, accelerate. With --dims but no framework: the order given.",
    )
    world_size: int | None = Field(None, ge=1, le=1 << 20, description="Number of ranks.")
    gpus_per_host: int | None = Field(
        None, ge=1, le=4096, description="Number of neighbouring ranks per host, to see which groups span hosts."
    )
    rank: int | None = Field(
        None, ge=0, le=1 << 20, description="Show this rank's place, and which ranks wait if it stops."
    )
    members: str = Field("", description="Ranks of a group (0-7,9): show its axis.")
    group: str = Field("", description="Name or description of a process group (mesh_tp): show its axis.")
    records: bool = Field(True, description="Also read the process groups of flight records.")


def capture(host: Host, args: MeshArgs) -> Raw:
    """Capture files that set a mesh, flight records, the commands of a live job, and the settings and questions
    typed."""
    from ddx_tools.probes.mesh.capture import capture_mesh

    return capture_mesh(host, args)


PROBE: Probe[MeshArgs] = Probe(
    id="mesh",
    title="Parallel dimensions",
    description="Reads the parallel dimensions of a job (parallel_dims, device mesh) and does their arithmetic: do "
    "they multiply to the number of ranks, do heads, layers and experts divide evenly, which groups span hosts. Shows "
    "where a rank is, the members of its groups, which axis a stuck group belongs to, and which ranks wait if one "
    "stops. Knows the order in which torchtitan, AReaL, Megatron-LM, DeepSpeed and Accelerate lay out ranks. Reads "
    "their configuration files, launch commands in scripts and logs, the commands of live jobs, the process groups of "
    "flight records, a model's config.json, and --dims.",
    args=MeshArgs,
    capture=capture,
    parse=Later("ddx_tools.probes.mesh.rows:mesh_rows"),
    analyse=Later("ddx_tools.probes.mesh.findings:mesh_findings"),
    table=Later("ddx_tools.probes.mesh.rows:line_rows"),
    most_rows=32,
    rest="--rank N puts the lines of that rank's groups first; the table mesh of the evidence store has all lines",
    shell_only=frozenset({"records"}),
    recognises={"mesh settings": Later("ddx_tools.probes.mesh.read:recognises")},
    kinds=("mesh settings",),
    about_files=frozenset({"records"}),
    examples={
        "--dims pp=2,dp_shard=-1,tp=8 --world-size 64 --gpus-per-host 8": "an arithmetic question",
        "train.toml config.json --world-size 1024 --rank 517": "where a rank is, and which ranks wait for it",
        "run.sh --group EXPERT_MODEL_PARALLEL_GROUP": "which axis a group belongs to",
        "dumps/ --members '0-448 step 64'": "the mesh that flight records show, and which group these ranks form",
        "--dims 'megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)'": "an AReaL allocation",
    },
)
