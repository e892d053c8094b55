"""Probe `jobs`: which distributed jobs run on this host, and which process is which rank."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.declaration import Later, Probe, ProbeArgs


class JobsArgs(ProbeArgs):
    """The target may be the pid of a launcher, of a rank or of a worker; without one all jobs are shown."""


def analyse(store: Store) -> list[Finding]:
    """Which jobs there are, and which of their ranks are gone, held, not to be read, or were not started."""
    from ddx_tools.probes.jobs.findings import asked_host_findings, job_findings
    from ddx_tools.probes.jobs.not_started import not_started

    return [*job_findings(store), *not_started(store), *asked_host_findings(store)]


PROBE: Probe[JobsArgs] = Probe(
    id="jobs",
    title="Distributed jobs on this host",
    description=(
        "Finds the distributed PyTorch jobs that run on this host and says which process is which rank: launcher "
        "(torchrun, mp.spawn, accelerate, deepspeed, mpirun, Ray Train, Slurm, plain environment variables), world "
        "size, state, CPU use, command, where the output goes. Workers that load data or compile are shown with "
        "their rank. Also tells which ranks are gone, stopped, or may not be read. Looks at processes only; touches "
        "none of them."
    ),
    args=JobsArgs,
    capture=Later("ddx_tools.probes.jobs.rows:capture_processes"),
    parse=Later("ddx_tools.probes.jobs.rows:rank_rows"),
    analyse=analyse,
    table=(
        "SELECT rank, local_rank, pid, role, state, round(cpu_percent) AS cpu_percent, round(wall_s) AS wall_s, "
        "launcher, world_size, master, cwd, stdout, stderr, command, debug FROM ranks "
        "ORDER BY job, rank NULLS FIRST, role <> 'rank', pid"
    ),
)
