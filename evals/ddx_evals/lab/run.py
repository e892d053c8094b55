"""One real run of a scenario: start it, wait until it is healthy, wait until it is struck, end it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ddx_evals.lab.processes import kill_all, processes_in, rank_processes
from ddx_evals.lab.scenario import Scenario
from ddx_evals.lab.truth import Truth, resolve_truth
from ddx_evals.lab.workspace import new_workdir, prepare

# What a job inherits. The caller's own variables would tell on it: pytest, for one, puts the name of
# the running test into the environment.
_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")

# A launcher may put a prefix before the lines of its ranks (torchrun --tee: "[default0]:").
_STEP = re.compile(r"^(?:\[\w+\]:\s*)?step (\d+) loss \S+$", re.MULTILINE)
_POLL_S = 0.1


class LabError(Exception):
    """A lab job did not do what its scenario says. The text carries the end of its log."""


class LabRun:
    """A run of `scenario` with `nproc` ranks, as a context manager that leaves no process behind.

    `workdir`: an existing empty directory that the caller keeps (a neutral name is the caller's affair);
    without it a temporary one is made, and removed at the end. `launcher_prefix` goes in front of the
    launcher's argv (`["ddx", "run", "--"]`). `step` is the step at which the scenario strikes.
    `environment` is added to the small, neutral one that jobs get.
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
    ) -> None:
        self.scenario = scenario
        self.nproc = nproc
        self.step = scenario.step if step is None else step
        self._own_workdir = workdir is None
        self.workdir = new_workdir() if workdir is None else workdir.resolve()
        self._launcher_prefix = list(launcher_prefix)
        self._environment = dict(environment or {})
        self._launcher: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, psutil.Process] = {}
        self._stdin_writer: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def launcher_log(self) -> Path:
        """The regular file that takes stdout and stderr of the launcher and of all ranks."""
        return self.workdir / "train.log"

    @property
    def launcher_pid(self) -> int:
        """The pid of the launcher, or of what stands in front of it. Raises LabError before start()."""
        return self._started().pid

    @property
    def argv(self) -> list[str]:
        """The launcher's command line. Raises LabError where torch is not installed."""
        args = [self.scenario.fill(arg, self.nproc, self.step) for arg in self.scenario.args]
        if self.scenario.launcher == "env":
            launch = [sys.executable, "launch.py", str(self.nproc), "train.py"]
        else:
            torchrun = Path(sys.executable).with_name("torchrun")
            if not torchrun.exists():
                raise LabError(
                    f"there is no torchrun beside {sys.executable}: lab jobs need torch; "
                    "type: pip install 'debug-distributed[lab]'"
                )
            options = ["--standalone", f"--nproc-per-node={self.nproc}", *self.scenario.launcher_args]
            launch = [str(torchrun), *options, "train.py"]
        return [*self._launcher_prefix, *launch, *args]

    def start(self) -> None:
        """Prepare the copy and launch it. Raises ScenarioError if scenario and job do not fit, LabError."""
        prepare(self.scenario, self.nproc, self.step, self.workdir)
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", **self.scenario.environment, **self._environment}
        stdin = subprocess.DEVNULL
        if self.scenario.stdin == "open":
            stdin, self._stdin_writer = os.pipe()
        try:
            with open(self.launcher_log, "wb") as log:
                self._launcher = subprocess.Popen(
                    self.argv,
                    cwd=self.workdir,
                    env=environment,
                    stdin=stdin,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            if self._stdin_writer is not None:
                os.close(stdin)

    def wait_healthy(self, timeout_s: float = 120.0, steps: int = 3) -> None:
        """Wait until all ranks are there and `steps` steps were printed. Raises LabError."""
        self._wait(lambda: self.last_step() >= steps - 1, timeout_s, f"{steps} steps")
        if len(self.rank_pids()) != self.nproc:
            raise self._error(f"found the ranks {list(self.rank_pids())} of {self.nproc}")

    def wait_struck(self, timeout_s: float = 120.0) -> None:
        """Wait until the scenario has struck and settled; sends its signal, if any. Raises LabError."""
        deadline = time.monotonic() + timeout_s
        if self.scenario.signal:
            self._wait(lambda: self.last_step() >= self.step, timeout_s, f"step {self.step}")
            name = self.scenario.ranks[self.nproc][self.scenario.signal.rank]
            os.kill(self.rank_pids()[name], signal.Signals[self.scenario.signal.name])
        settled = {
            "quiet": self._is_quiet,
            "exited": lambda: self._exit_code() is not None,
            "flowing": lambda: self.last_step() >= self.step + self.scenario.settles.steps,
            "printed": self._has_printed,
        }[self.scenario.settles.how]
        may_exit = self.scenario.settles.how == "exited"
        remaining_s = deadline - time.monotonic()
        self._wait(settled, remaining_s, f"the state {self.scenario.settles.how!r}", may_exit=may_exit)

    def truth(self) -> Truth:
        """What is right to say about this run, its places resolved to lines of the copy that runs."""
        return resolve_truth(self.scenario, self.nproc, self.step, self.workdir)

    def last_step(self) -> int:
        """The greatest step printed so far; -1 before the first."""
        if not self.launcher_log.exists():
            return -1
        text = self.launcher_log.read_text(encoding="utf-8", errors="replace")
        return max((int(match[1]) for match in _STEP.finditer(text)), default=-1)

    def rank_pids(self) -> dict[int, int]:
        """The pid of each rank seen so far, also of ranks that have ended since."""
        if len(self._ranks) < self.nproc:
            self._ranks = rank_processes(processes_in(self.workdir)) | self._ranks
        return {rank: process.pid for rank, process in sorted(self._ranks.items())}

    def stop(self) -> None:
        """Kill everything that this run started and remove its temporary directory. Raises LabError."""
        known = list(self._ranks.values())
        if self._launcher is not None and self._launcher.poll() is None:
            known.append(psutil.Process(self._launcher.pid))
        left = kill_all(self.workdir, known)
        if self._launcher is not None:
            self._launcher.wait()
        if self._stdin_writer is not None:
            os.close(self._stdin_writer)
            self._stdin_writer = None
        if left:
            raise LabError(f"these processes of {self.workdir} do not end: {left}")
        if self._own_workdir:
            shutil.rmtree(self.workdir, ignore_errors=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._launcher is None:
            raise LabError("the run was not started; call start() first")
        return self._launcher

    def _exit_code(self) -> int | None:
        return self._started().poll()

    def _is_quiet(self) -> bool:
        silent_s = time.time() - self.launcher_log.stat().st_mtime
        return self.last_step() >= self.step - 1 and silent_s >= self.scenario.settles.seconds

    def _has_printed(self) -> bool:
        text = self.launcher_log.read_text(encoding="utf-8", errors="replace")
        silent_s = time.time() - self.launcher_log.stat().st_mtime
        return self.scenario.settles.text in text and silent_s >= self.scenario.settles.seconds

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str, *, may_exit: bool = False) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached():
            self.rank_pids()
            if not may_exit and self._exit_code() is not None:
                raise self._error(f"the job ended with {self._exit_code()} before {what}")
            if time.monotonic() > deadline:
                raise self._error(f"no sign of {what} in {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _error(self, message: str) -> LabError:
        log = self.launcher_log.read_text(encoding="utf-8", errors="replace")
        tail = "\n".join(log.splitlines()[-30:])
        return LabError(f"scenario {self.scenario.id} with {self.nproc} ranks: {message}\n{tail}")
