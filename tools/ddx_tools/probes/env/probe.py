"""Probe `env`: the environment of the ranks and the commands that start them."""

from __future__ import annotations

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs


class EnvArgs(ProbeArgs):
    """The target: printed environments, launch scripts, manifests, directories of them, or a pid of a live job."""


PROBE: Probe[EnvArgs] = Probe(
    id="env",
    title="Environment and launch command",
    description=(
        "Checks the environment variables and the launch command of a distributed job: names that nothing reads (with "
        "the one that was meant), values that are out of range or not understood, what has no effect in the version "
        "that runs, what is deprecated, contradicts or endangers, what an old debugging session left behind, what "
        "differs between ranks or hosts, how GPUs are bound to tasks, whether the parallel dimensions fit the number "
        "of processes, and what is missing for the next hang to be diagnosable. Reads live ranks, printed "
        "environments (`env`, `printenv`, `export -p`, JSON), shell and sbatch scripts, docker, Kubernetes and Compose "
        "settings, and launch commands in notes. Executes nothing; secrets are not shown."
    ),
    args=EnvArgs,
    capture=Later("ddx_tools.probes.env.capture:capture_environments"),
    parse=Later("ddx_tools.probes.env.capture:captured_rows"),
    recognises={"launch": Later("ddx_tools.parsers.launch.environment_file:read_file")},
    rests_on=("env_values", "launch_options", "env_versions"),
    analyse=Later("ddx_tools.probes.env.findings:environment_findings"),
    table=Later("ddx_tools.probes.env.findings:variable_rows"),
    explain=Later("ddx_tools.probes.env.explain:explained"),
    examples={
        "": "the ranks of the job on this host",
        "train.sbatch": "a script, without running it",
        "node1.env node2.env": "what `env` printed on two hosts, compared",
        "--explain NCCL_IB_TIMEOUT": "what a variable is for",
        "48213 --json": "the job of one process, as JSON",
    },
)
