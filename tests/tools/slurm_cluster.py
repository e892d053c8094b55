"""A real Slurm over hosts with namespaces of their own: its controller on the machine beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sshd_hosts import NEEDS, Hosts, sshd_hosts, wait_for

SLURM_NEEDS = (*NEEDS, "slurmctld", "slurmd", "munged", "srun", "sbatch")
_CONF = """\
ClusterName=test
SlurmctldHost=desk({desk})
AuthInfo=socket={home}/munge/socket
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmdSpoolDir={home}/spool-%n
SlurmdPidFile={home}/%n.pid
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
KillWait=30
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster that takes jobs."""

    hosts: Hosts
    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What its programs need."""
        return {"SLURM_CONF": str(self.home / "slurm.conf")}

    def at_desk(self, *argv: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine beside the nodes."""
        return self.hosts.at_desk("env", *(f"{k}={v}" for k, v in self.environment.items()), *argv, timeout_s=timeout_s)

    def submit(self, script: str, *options: str) -> str:
        """The number of a new job; it prints to `job-<number>.out`."""
        (self.home / "job.sh").write_text(script)
        done = self.at_desk(
            "sbatch", "--parsable", f"--chdir={self.home}", "--output=job-%j.out", *options, str(self.home / "job.sh")
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def printed(self, job: str) -> str:
        """What a job has printed so far."""
        file = self.home / f"job-{job}.out"
        return file.read_text() if file.exists() else ""


@contextmanager
def slurm_cluster(names: Sequence[str], home: Path) -> Iterator[Slurm]:
    """Nodes that are idle. All daemons end with their hosts."""
    with sshd_hosts(names, home) as hosts, ExitStack() as stack:
        nodes = [f"NodeName={name} NodeAddr={hosts.address(name)} CPUs=8 State=UNKNOWN" for name in names]
        conf = _CONF.format(home=home, desk=hosts.address("desk"), names=",".join(names), nodes="\n".join(nodes))
        (home / "slurm.conf").write_text(conf)
        (home / "state").mkdir()
        (home / "munge").mkdir(mode=0o700)
        (home / "munge" / "key").write_bytes(b"k" * 1024)
        (home / "munge" / "key").chmod(0o400)
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munged = [f"--{option}={home}/munge/{name}" for option, name in places.items()]
        slurm = Slurm(hosts, home)

        def daemon(host: str, *argv: str) -> None:
            named = [f"{name}={value}" for name, value in slurm.environment.items()]
            log = stack.enter_context((home / f"{host}-{Path(argv[0]).name}.log").open("wb"))
            process = subprocess.Popen(hosts.inside(host, ["env", *named, *argv]), stdout=log, stderr=log)
            stack.callback(process.wait, 20)
            stack.callback(process.kill)

        daemon("desk", "munged", "--foreground", "--force", *munged)
        wait_for("munged", (home / "munge" / "socket").exists, 20)
        daemon("desk", "slurmctld", "-D")
        for name in names:
            daemon(name, "slurmd", "-D")
        wait_for(
            "idle nodes",
            lambda: slurm.at_desk("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(len(names)),
            60,
        )
        yield slurm
