"""Runs a command-line agent once on one view of an incident and keeps what it submits."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddx_evals.agents.answer_files import OUTPUT, TRY, TryRecord, last_report_ns, next_report
from ddx_evals.agents.arm import Arm, Tools
from ddx_evals.agents.prompt import told
from ddx_evals.agents.serving import serving
from ddx_evals.agents.workplace import MCP_CONFIG, TASK, Connection, furnish, written_answer
from ddx_evals.baselines import Case
from ddx_evals.sealed import SealedPlace, run_beside, run_in, sealing_fails
from ddx_tools.knowledge.resources import incidents_dir, lab_dir
from ddx_tools.model.errors import UsageError


@dataclass(frozen=True)
class CommandAgent:
    """An agent that is a command.

    In its arguments, `{task}` stands for the whole task, `{task_file}` and `{mcp_config}` for files in its working
    directory. If no argument names the task, it is passed on standard input.
    """

    command: Sequence[str]
    arm: Arm
    limit_s: float
    see: Sequence[Path] = ()
    """The agent's own directories and programs."""
    environment: Mapping[str, str] | None = None
    sealed: bool = True
    system: str = "agent"
    """The name of the agent."""

    def check(self, incidents: Sequence[Path]) -> None:
        """Raise UsageError if the agent would see what it must not, or cannot be sealed."""
        hidden = [incidents_dir().resolve(), lab_dir().resolve(), *(path.resolve() for path in incidents)]
        for path in map(Path.resolve, self.see):
            if not path.exists():
                raise UsageError(f"--see {path}: no such file or directory", "Name the agent's programs and files.")
            if self.sealed and any(truth.is_relative_to(path) or path.is_relative_to(truth) for truth in hidden):
                raise UsageError(
                    f"--see {path} would show the truth",
                    "Name fewer paths, or add --unsealed: such runs are not ranked.",
                )
        if self.sealed and (reason := sealing_fails()):
            raise UsageError(reason, "Add --unsealed to run it anyway: such runs are not ranked.")


def attempt(agent: CommandAgent, case: Case, reports: Path) -> None:
    """Make one try at a case. Submissions, calls, output and `try.json` are written to `reports`."""
    has_files = agent.arm.tools is not Tools.NONE
    task = told(case.truth.prompt, agent.arm, {} if has_files else case.logs)
    with (
        handed_in(reports) as collected,
        serving(collected, agent.arm.tools, case.material.parent, case.material) as connection,
    ):
        work(agent, task, case.material, connection, collected)


@contextmanager
def handed_in(reports: Path) -> Iterator[Path]:
    """Yield a directory with a neutral name (the server says where it saves); then move its content to `reports`."""
    with tempfile.TemporaryDirectory(prefix="reports-") as scratch:
        try:
            yield Path(scratch)
        finally:
            shutil.copytree(scratch, reports, dirs_exist_ok=True)


def work(agent: CommandAgent, task: str, material: Path | None, connection: Connection, reports: Path) -> None:
    """Let an agent work on a task within its time limit."""
    with tempfile.TemporaryDirectory(prefix="work-") as scratch, (reports / OUTPUT).open("wb") as output:
        seen = {str(path.absolute()): path for path in agent.see}
        place = furnish(Path(scratch).resolve(), agent.arm, task, material, connection, seen)
        began_s = time.monotonic()
        ended = _run_to_its_end(agent, place, task, output)
        took_s = round(time.monotonic() - began_s, 1)
        if answer := written_answer(place.directory, last_report_ns(reports)):
            (reports / next_report(reports)).write_bytes(answer)
    record = TryRecord(system=agent.system, arm=str(agent.arm), sealed=agent.sealed, ended=ended, seconds=took_s)
    (reports / TRY).write_text(record.model_dump_json(indent=1), encoding="utf-8")


def _run_to_its_end(agent: CommandAgent, place: SealedPlace, task: str, output: IO[bytes]) -> str:
    """Run the agent and return how it ended, in words."""
    command = [_filled(argument, task) for argument in agent.command]
    run = run_in if agent.sealed else run_beside
    names_task = any(name in argument for argument in agent.command for name in ("{task}", "{task_file}"))
    with (place.directory / TASK).open("rb") as task_file:
        stdin = subprocess.DEVNULL if names_task else task_file.fileno()
        try:
            with run(place, command, agent.environment, stdin=stdin, output=output.fileno()) as process:
                try:
                    return f"exit {process.wait(agent.limit_s)}"
                except subprocess.TimeoutExpired:
                    return f"stopped after {agent.limit_s:g} s"
        except OSError as error:
            return f"did not start: {error.strerror or error}"


def _filled(argument: str, task: str) -> str:
    """Fill in one argument; the task comes last, since it may contain braces."""
    return argument.replace("{mcp_config}", MCP_CONFIG).replace("{task_file}", TASK).replace("{task}", task)
