"""Probe `env`: the environment of the ranks and the commands that start them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddx_tools.model import Finding
from ddx_tools.probe import Probe, ProbeArgs, Raw, Rows
from ddx_tools.sources.hosts.base import Host

if TYPE_CHECKING:
    from ddx_tools.store import Store


class EnvArgs(ProbeArgs):
    """The target: printed environments, launch scripts, manifests, directories of them, or a pid of a live job."""


def capture(host: Host, args: EnvArgs) -> Raw:
    """The environments of a live job's ranks, or those of files; a file that holds none is left to other probes."""
    from ddx_tools.environment.capture import capture_environments

    return capture_environments(host, args.target)


def parse(raw: Raw) -> Rows:
    """Rows of `env_values`, `launch_options` and `env_versions`."""
    from ddx_tools.environment.capture import captured_rows

    return captured_rows(raw)


def analyse(store: Store) -> list[Finding]:
    """What is wrong, odd, dangerous or missing among them."""
    from ddx_tools.environment.findings import environment_findings

    return environment_findings(store)


def table(store: Store) -> list[dict[str, Any]]:
    """Variable, value, who, verdict."""
    from ddx_tools.environment.table import variable_rows

    return variable_rows(store)


PROBE = Probe(
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
    finding_codes=(
        "config.suspicious",
        "config.differs",
        "config.not_diagnosable",
        "launch.setting",
        "mesh.size_mismatch",
    ),
    capture=capture,
    parse=parse,
    rests_on=("env_values", "launch_options", "env_versions"),
    analyse=analyse,
    table=table,
    examples={
        "": "the ranks of the job on this host",
        "train.sbatch": "a script, without running it",
        "node1.env node2.env": "what `env` printed on two hosts, compared",
        "48213 --json": "the job of one process, as JSON",
    },
)
