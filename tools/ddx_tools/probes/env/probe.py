"""Probe `env`: the environment of the ranks and the commands that start them."""

from __future__ import annotations

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs


class EnvArgs(ProbeArgs):
    """Arguments of `env`. The target: printed environments, launch scripts, manifests, directories of them, or a pid of
    a live job."""


PROBE: Probe[EnvArgs] = Probe(
    id="env",
    title="Environment and launch command",
    description=(
        "Checks the environment variables and the launch command of a distributed job: names that nothing reads (with "
        "the likely intended name), values that are out of range or invalid, settings that have no effect in the "
        "running version, that are deprecated, contradictory or dangerous, leftovers from debugging, differences "
        "between ranks or hosts, how GPUs are bound to tasks, whether the parallel dimensions fit the number of "
        "processes, and what is missing to make the next hang diagnosable. Reads live ranks, printed environments "
        "(`env`, `printenv`, `export -p`, JSON), shell and sbatch scripts, docker, Kubernetes and Compose settings, "
        "and launch commands in notes. Executes nothing; secrets are not shown."
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
        "node1.env node2.env": "output of `env` from two hosts, compared",
        "--explain NCCL_IB_TIMEOUT": "what a variable is for",
        "48213 --json": "the job of one process, as JSON",
    },
)
