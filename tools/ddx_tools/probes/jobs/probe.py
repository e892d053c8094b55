"""Probe `jobs`: which distributed jobs run on this host, and which process is which rank."""

from __future__ import annotations

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding
from ddx_tools.probes.declaration import Later, Probe, ProbeArgs


class JobsArgs(ProbeArgs):
    """Arguments of `jobs`. The target may be the pid of a launcher, a rank or a worker; without a target, all jobs are
    shown."""


def analyse(store: Store) -> list[Finding]:
    """Return the findings about jobs: which exist, and which of their ranks are gone, held, unreadable or never
    started."""
    from ddx_tools.probes.jobs.findings import asked_host_findings, job_findings
    from ddx_tools.probes.jobs.not_started import not_started

    return [*job_findings(store), *not_started(store), *asked_host_findings(store)]


PROBE: Probe[JobsArgs] = Probe(
    id="jobs",
    title="Distributed jobs on this host",
    description=(
        "Finds the distributed PyTorch jobs that run on this host and says which process is which rank: launcher "
        "(torchrun, mp.spawn, accelerate, deepspeed, mpirun, Ray Train, Slurm, plain environment variables), world "
        "size, state, CPU use, command, where the output goes. Data-loading and compile workers are shown with their "
        "rank. Also reports ranks that are gone, stopped or unreadable. Reads process information only; touches no "
        "process."
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
