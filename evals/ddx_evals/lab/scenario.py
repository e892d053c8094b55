"""A scenario: a training job, an edit or a signal that breaks it, and the truth about it."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ddx_evals.lab.place import LabHost
from ddx_tools.knowledge.load import YAMLError, load_yaml
from ddx_tools.knowledge.resources import lab_dir
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.errors import UsageError

Launcher = Literal["torchrun", "env"]
Evidence = Literal["S", "F", "L"]
Verdict = Literal["diagnosed", "undecided", "healthy"]

_PLACEHOLDER = re.compile(r"\$([a-z]+)")
_ROW = re.compile(r"([hu]?)([0-9]+)([a-z]?)")


_HOW = "evals/lab/README.md, A scenario file, describes the format; `ddx lab list` shows whether it can be read."


class ScenarioError(UsageError):
    """A scenario file, or its edit of a job, is unusable. The message says which and why."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Edit(_Record):
    """Replace the only occurrence of `find` in a file of the job."""

    file: str
    find: str
    replace: str


class SendSignal(_Record):
    """A signal that the runner sends to one rank, or to a launcher, once the strike step is printed."""

    name: Literal["SIGKILL", "SIGSTOP", "SIGTERM"]
    rank: str = Field(default="", description="a name from `ranks`; default: the launcher on the first host")


class Settles(_Record):
    """The condition under which the scenario is ready to be examined.

    quiet: the strike step is reached and no further step has been printed for `seconds`. exited: the launcher exited by
    itself. flowing: `steps` steps after the strike step have been printed. printed: `text` has been in the launcher's
    log for `seconds`. waiting: no launcher has ended or printed anything for `seconds`, and there was no step: the job
    does not start.
    """

    how: Literal["quiet", "exited", "flowing", "printed", "waiting"]
    seconds: float = 4.0
    steps: int = 10
    text: str = ""


class ExpectedPlace(_Record):
    """A source line that counts as the place, given by the job's file and the text."""

    file: str
    contains: str


class ExpectedTruth(_Record):
    """The right diagnosis of the scenario."""

    verdicts: tuple[Verdict, ...] = Field(min_length=1)
    causes: tuple[str, ...] = Field(default=(), description="accepted cause ids, best first")
    culprits: dict[int, tuple[tuple[int, ...], ...]] = Field(
        default_factory=dict, description="for each number of ranks, the accepted sets of culprits, best first"
    )
    hosts: tuple[str, ...] = Field(default=(), description="names of the job's hosts that are to blame")
    places: tuple[ExpectedPlace, ...] = ()
    asks_about: tuple[str, ...] = Field(
        default=(), description="names from `ranks` that the next check must ask about, if no rank is to blame"
    )


class Scenario(_Record):
    """One scenario of the lab.

    Tests run the scenarios with a row in the table of live scenarios; the others are only for recording. `ranks` and
    `step` fill the placeholders (`$rank`, `$step`, …) in edits, arguments and texts; `ranks` is given for each number
    of ranks of the job.
    """

    row: str = Field(
        default="",
        pattern=r"^([hu]?[0-9]+[a-z]?)?$",
        description="its row in the table of live scenarios, if it has one: 7, 10a, h2, u1",
    )
    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    title: str
    job: str
    evidence: tuple[Evidence, ...]
    launcher: Launcher = "torchrun"
    args: tuple[str, ...] = ()
    stdin: Literal["closed", "open"] = "closed"
    launcher_args: tuple[str, ...] = Field(default=(), description="additional torchrun options")
    environment: dict[str, str] = Field(default_factory=dict, description="variables set by the user who launches it")
    needs: tuple[str, ...] = Field(default=(), description="programs that must be on PATH")
    needs_modules: tuple[str, ...] = Field(default=(), description="Python modules that must be installed")
    step: int = Field(
        default=20, ge=2, description="the step at which the fault occurs, unless the caller chooses another"
    )
    ranks: dict[int, dict[str, int]] = Field(default_factory=dict)
    patch: tuple[Edit, ...] = ()
    signal: SendSignal | None = None
    hosts: tuple[LabHost, ...] = Field(
        default=(), description="the hosts, each with an equal share of the ranks; default: this machine"
    )
    unplugged: str = Field(default="", description="the host whose cable is pulled at the strike step")
    settles: Settles
    truth: ExpectedTruth

    @model_validator(mode="after")
    def _truth_is_consistent(self) -> "Scenario":
        diagnosed = "diagnosed" in self.truth.verdicts
        # If a host is faulty, or the job does not start, all ranks may be victims.
        nobody = diagnosed and (bool(self.hosts) or self.settles.how == "waiting")
        if diagnosed != bool(self.truth.causes) or diagnosed != (bool(self.truth.culprits) or nobody):
            raise ValueError("causes and culprits must be given if, and only if, the scenario can be diagnosed")
        named = {*self.truth.asks_about, *([self.signal.rank] if self.signal and self.signal.rank else [])}
        if unnamed := {rank for rank in named for names in self.ranks.values() or [{}] if rank not in names}:
            raise ValueError(f"signal or asks_about names the rank {min(unnamed)!r}, which is not in `ranks`")
        names = {host.name for host in self.hosts}
        if unknown := {*self.truth.hosts, *([self.unplugged] if self.unplugged else [])} - names:
            raise ValueError(f"`hosts` has no {', '.join(sorted(unknown))}")
        if len(names) < len(self.hosts):
            raise ValueError("two hosts have the same name")
        return self

    def fill(self, text: str, nproc: int, step: int) -> str:
        """Replace the placeholders that this scenario knows; any other `$` stays as it is."""
        values = {"step": step, **self.ranks.get(nproc, {})}
        return _PLACEHOLDER.sub(lambda m: str(values[m[1]]) if m[1] in values else m[0], text)


def scenario_file(scenario_id: str, directory: Path | None = None) -> Path:
    """The path of a scenario's file in a lab directory (default: ours)."""
    return _scenarios_dir(directory) / f"{scenario_id}.yaml"


def scenario_ids() -> list[str]:
    """The ids of our scenarios, readable or not."""
    return sorted(path.stem for path in _scenarios_dir(None).glob("*.yaml"))


def read_scenarios(directory: Path | None = None) -> tuple[dict[str, Scenario], dict[str, ScenarioError]]:
    """The scenarios of a lab directory (default: ours), ordered by row, and the errors of unreadable ones, by id."""
    scenarios: dict[str, Scenario] = {}
    errors: dict[str, ScenarioError] = {}
    for path in sorted(_scenarios_dir(directory).glob("*.yaml")):
        try:
            scenarios[path.stem] = _load(path)
        except ScenarioError as error:
            errors[path.stem] = error
    return dict(sorted(scenarios.items(), key=lambda item: (_row_key(item[1].row), item[0]))), errors


def load_scenarios(directory: Path | None = None) -> dict[str, Scenario]:
    """The scenarios of a lab directory (default: ours), by id, ordered by row. Raises ScenarioError."""
    scenarios, errors = read_scenarios(directory)
    if errors:
        raise next(iter(errors.values()))
    if not scenarios:
        raise ScenarioError(f"no scenarios in {_scenarios_dir(directory)}")
    return scenarios


def _scenarios_dir(directory: Path | None) -> Path:
    return (directory or lab_dir()) / "scenarios"


def _load(path: Path) -> Scenario:
    try:
        scenario = Scenario.model_validate(load_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ScenarioError(f"{path}: {first_mistake(error)}", _HOW) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ScenarioError(f"{path}: {error}", _HOW) from error
    if path.stem != scenario.id:
        raise ScenarioError(f"{path}: contains the scenario {scenario.id!r}; name the file after it")
    return scenario


def _row_key(row: str) -> tuple[str, int, str]:
    match = _ROW.fullmatch(row)
    return (match[1], int(match[2]), match[3]) if match else ("~", 0, "")
