"""The results of a suite run: every answer's score, and the conditions of the run."""

from __future__ import annotations

import datetime as dt
import platform
import subprocess
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddx_evals.incidents import View
from ddx_evals.scoring import CaseScore, Efficiency
from ddx_tools import __version__
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.errors import UnreadableInput

_HOW_TO_GET_ONE = "Name a file that `ddx evals run --out` or `ddx evals score --out` wrote."
CaseKey = tuple[str, str, View]
"""Split, incident, view."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CaseResult(_Record):
    """One try of one system on one view of one incident."""

    system: str
    split: str
    incident: str
    view: View
    epoch: int = 0
    arm: str = ""
    """The agent's arm, such as `all+skill`; "" for a baseline."""
    unsealed: bool = False
    """Whether it could have seen the truth: its figures are shown, but not ranked."""
    truth: str
    """The right cause."""
    named: list[str] = Field(default_factory=list)
    """The causes of the answer, best first."""
    score: CaseScore | None = None
    efficiency: Efficiency | None = None
    right_after_s: float | None = None
    """For a live job: seconds from the first sample to the first right diagnosis without a later wrong one."""
    error: str = ""
    """Why there is no score: the run failed without an answer."""

    @property
    def case(self) -> CaseKey:
        """The key of the case."""
        return self.split, self.incident, self.view


class RunManifest(_Record):
    """The versions and conditions under which the answers were given."""

    ddx_version: str = __version__
    commit: str = ""
    modified: bool | None = None
    """Whether the checkout differed from the commit; None outside a checkout."""
    python: str = Field(default_factory=platform.python_version)
    created: str = Field(default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))


class Run(_Record):
    """A file of results."""

    schema_: Literal["ddx.evals/1"] = Field("ddx.evals/1", alias="schema")
    manifest: RunManifest
    results: list[CaseResult] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    def to_json(self) -> str:
        """The run as JSON for `read_run`."""
        return self.model_dump_json(by_alias=True, indent=1)


def read_run(file: Path) -> Run:
    """Read a run written by `ddx evals run --json` or `ddx evals score --json`. Raises UnreadableInput."""
    try:
        return Run.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UnreadableInput(f"{file}: {error.strerror or error}", _HOW_TO_GET_ONE) from error
    except ValidationError as error:
        raise UnreadableInput(f"{file} has no evaluation results ({first_mistake(error)})", _HOW_TO_GET_ONE) from error


def this_checkout() -> RunManifest:
    """The manifest for a run that starts now."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    return RunManifest(commit=commit or "", modified=bool(_git(here, "status", "--porcelain")) if commit else None)


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
