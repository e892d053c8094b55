"""One real run of a scenario: start it, wait until it is healthy, wait for the fault, end it."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ddx_evals.lab.launching import LabLaunch, NoTorch, launches
from ddx_evals.lab.machine import Machine, machines, missing_for
from ddx_evals.lab.processes import kill_all, processes_in, rank_processes
from ddx_evals.lab.scenario import Scenario
from ddx_evals.lab.truth import RunTruth, resolve_truth
from ddx_evals.lab.wires import cut
from ddx_evals.lab.workspace import limit_collectives, new_workdir, prepare
from ddx_tools.model.install_hint import install_command
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals

# The variables that a job inherits. The caller's own variables could give it away: pytest, for one, puts the name of
# the running test into the environment.
_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")

# A launcher may prefix the lines of its ranks (torchrun --tee: "[default0]:").
_STEP = re.compile(r"^(?:\[\w+\]:\s*)?step (\d+) loss \S+$", re.MULTILINE)
_POLL_S = 0.1


class LabError(Exception):
    """A lab job did not behave as its scenario says. The message includes the end of its log."""


class LabRun:
    """A run of `scenario` with `nproc` ranks, as a context manager that leaves no process behind.

    `workdir` is an existing empty directory that the caller keeps and names; by default a temporary one is created and
    removed at the end. `launcher_prefix` is put before the launcher's argv (`["ddx", "run", "--"]`). `step` is the step
    at which the fault occurs. `environment` is added to the minimal neutral environment of jobs; `limit_s` is the
    timeout of the job's collectives.
    """

    def __init__(
        self,
        scenario: Scenario,
        nproc: int,
        workdir: Path | None = None,
        launcher_prefix: Sequence[str] = (),
        *,
        step: int | None = None,
        environment: Mapping[str, str] | None = None,
        limit_s: int | None = None,
    ) -> None:
        self.scenario = scenario
        self.nproc = nproc
        self.step = scenario.step if step is None else step
        self._own_workdir = workdir is None
        self.workdir = new_workdir() if workdir is None else workdir.resolve()
        self.machines: dict[str, Machine] = {}
        """The hosts of the scenario by name, once created; empty if the job runs on this machine."""
        self._launcher_prefix = list(launcher_prefix)
        self._environment = dict(environment or {})
        self._limit_s = limit_s
        self._launchers: list[tuple[LabLaunch, subprocess.Popen[bytes]]] = []
        self._ranks: dict[int, psutil.Process] = {}
        self._stdin_writer: int | None = None
        self._hosts = ExitStack()
        self._signals = ExitStack()

    def __enter__(self) -> Self:
        self._signals.enter_context(ended_by_signals())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._signals.close()

    @property
    def launches(self) -> list[LabLaunch]:
        """The launchers of all hosts, rank 0's first. Raises LabError if the job cannot be launched."""
        try:
            return launches(self.scenario, self.nproc, self.step, self._launcher_prefix)
        except (NoTorch, ValueError) as error:
            raise LabError(f"scenario {self.scenario.id}: {error}") from error

    @property
    def launcher_logs(self) -> list[Path]:
        """The files with stdout and stderr of the launchers and their ranks, rank 0's first."""
        return [self.workdir / launch.log for launch in self.launches]

    @property
    def launcher_log(self) -> Path:
        """The log of rank 0's launcher."""
        return self.launcher_logs[0]

    @property
    def launcher_pids(self) -> dict[str | None, int]:
        """For each host, the pid of its launcher or of the prefix command, even if it has ended."""
        return {launch.host: launcher.pid for launch, launcher in self._launchers}

    @property
    def launcher_pid(self) -> int:
        """The pid of the launcher on rank 0's host. Raises LabError before start()."""
        if not self._launchers:
            raise LabError("the run was not started; call start() first")
        return self._launchers[0][1].pid

    @property
    def ended_hosts(self) -> set[str | None]:
        """The hosts whose launcher has ended."""
        return {launch.host for launch, launcher in self._launchers if launcher.poll() is not None}

    @property
    def argv(self) -> list[str]:
        """The first launcher's command line. Raises LabError if torch is not installed."""
        return self.launches[0].argv

    def start(self) -> None:
        """Prepare and launch the job's copy. Raises ScenarioError if scenario and job do not match, or LabError."""
        self._check_modules()
        prepare(self.scenario, self.nproc, self.step, self.workdir)
        if self._limit_s:
            limit_collectives(self.workdir, self._limit_s)
        if self.scenario.hosts:
            self._make_hosts()
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        stdin = subprocess.DEVNULL
        if self.scenario.stdin == "open":
            stdin, self._stdin_writer = os.pipe()
        try:
            for launch in self.launches:
                environment = {**inherited, "OMP_NUM_THREADS": "1", **launch.environment, **self._environment}
                self._launchers.append((launch, self._launch(launch, environment, stdin)))
        finally:
            if self._stdin_writer is not None:
                os.close(stdin)

    def _check_modules(self) -> None:
        missing = [name for name in self.scenario.needs_modules if find_spec(name) is None]
        if missing:
            raise LabError(
                f"scenario {self.scenario.id} needs the Python modules {', '.join(missing)}; "
                f"type: {install_command('lab-frameworks')}"
            )

    def _make_hosts(self) -> None:
        if reason := missing_for(self.scenario.hosts):
            raise LabError(f"scenario {self.scenario.id}: {reason}")
        try:
            made = self._hosts.enter_context(machines(self.scenario.hosts, self.workdir))
        except subprocess.CalledProcessError as error:
            raise LabError(f"scenario {self.scenario.id}: {error}\n{error.stderr or ''}") from error
        self.machines = {machine.name: machine for machine in made}

    def _launch(self, launch: LabLaunch, environment: dict[str, str], stdin: int) -> subprocess.Popen[bytes]:
        argv = self.machines[launch.host].enter(launch.argv, cwd=self.workdir) if launch.host else launch.argv
        with open(self.workdir / launch.log, "wb") as log:
            return subprocess.Popen(
                argv,
                cwd=self.workdir,
                env=environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_healthy(self, timeout_s: float = 120.0, steps: int = 3) -> None:
        """Wait until all ranks run and `steps` steps are printed. Raises LabError."""
        self._wait(lambda: self.last_step() >= steps - 1, timeout_s, f"{steps} steps")
        if len(self.rank_pids()) != self.nproc:
            raise self._error(f"found the ranks {list(self.rank_pids())} of {self.nproc}")

    def wait_struck(self, timeout_s: float = 120.0, *, may_exit: bool = False) -> None:
        """Wait for the fault and until the job has settled; sends the scenario's signal, if any. Raises LabError.

        `may_exit`: a job that ends instead of hanging is also accepted, since a message in the wrong receive aborts it.
        """
        deadline = time.monotonic() + timeout_s
        if self.scenario.signal or self.scenario.unplugged:
            self._wait(lambda: self.last_step() >= self.step, timeout_s, f"step {self.step}")
            self._strike()
        settled = {
            "quiet": self._is_quiet,
            "exited": lambda: self.exit_code() is not None,
            "flowing": lambda: self.last_step() >= self.step + self.scenario.settles.steps,
            "printed": self._has_printed,
            "waiting": self._is_waiting,
        }[self.scenario.settles.how]
        may_exit = may_exit or self.scenario.settles.how == "exited"
        remaining_s = deadline - time.monotonic()
        self._wait(settled, remaining_s, f"the state {self.scenario.settles.how!r}", may_exit=may_exit)

    def _strike(self) -> None:
        if self.scenario.unplugged:
            cut(self.machines[self.scenario.unplugged].namespace)
        if sends := self.scenario.signal:
            pids = self.rank_pids()
            pid = pids[self.scenario.ranks[self.nproc][sends.rank]] if sends.rank else self.launcher_pid
            os.kill(pid, signal.Signals[sends.name])

    def exit_code(self) -> int | None:
        """The first nonzero exit code, or 0, once all launchers have ended; None before."""
        codes = [launcher.poll() for _, launcher in self._launchers]
        return None if None in codes else next((code for code in codes if code), 0)

    def truth(self) -> RunTruth:
        """The truth about this run, with places resolved to lines of the running copy."""
        return resolve_truth(self.scenario, self.nproc, self.step, self.workdir)

    def last_step(self) -> int:
        """The highest step printed so far; -1 before the first."""
        return max((int(match[1]) for match in _STEP.finditer(self.printed())), default=-1)

    def rank_pids(self) -> dict[int, int]:
        """The pid of each rank seen so far, including ended ranks."""
        if len(self._ranks) < self.nproc:
            self._ranks = rank_processes(processes_in(self.workdir)) | self._ranks
        return {rank: process.pid for rank, process in sorted(self._ranks.items())}

    def stop(self) -> None:
        """Kill everything that this run started and remove its temporary directory. Raises LabError."""
        known = list(self._ranks.values())
        running = [launcher for _, launcher in self._launchers if launcher.poll() is None]
        left = kill_all(self.workdir, [*known, *(psutil.Process(launcher.pid) for launcher in running)])
        for launcher in running:
            launcher.wait()
        self._hosts.close()
        if self._stdin_writer is not None:
            os.close(self._stdin_writer)
            self._stdin_writer = None
        if left:
            raise LabError(f"these processes in {self.workdir} cannot be killed: {left}")
        if self._own_workdir:
            shutil.rmtree(self.workdir, ignore_errors=True)

    def printed(self) -> str:
        """The output of its launchers so far."""
        logs = [log for log in self.launcher_logs if log.exists()]
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)

    def _silent_s(self) -> float:
        return time.time() - max(log.stat().st_mtime for log in self.launcher_logs)

    def _is_quiet(self) -> bool:
        return self.last_step() >= self.step - 1 and self._silent_s() >= self.scenario.settles.seconds

    def _is_waiting(self) -> bool:
        begun = self.last_step() >= 0 or bool(self.ended_hosts)
        return not begun and self._silent_s() >= self.scenario.settles.seconds

    def _has_printed(self) -> bool:
        return self.scenario.settles.text in self.printed() and self._silent_s() >= self.scenario.settles.seconds

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str, *, may_exit: bool = False) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            self.rank_pids()
            if not may_exit and self.exit_code() is not None:
                raise self._error(f"the job ended with {self.exit_code()} before {what}")
            if time.monotonic() > deadline:
                raise self._error(f"no sign of {what} in {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _error(self, message: str) -> LabError:
        tail = "\n".join(self.printed().splitlines()[-30:])
        return LabError(f"scenario {self.scenario.id} with {self.nproc} ranks: {message}\n{tail}")
