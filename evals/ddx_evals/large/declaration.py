"""The declaration of a large incident, a file in `evals/lab/large`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ddx_evals.incidents.truth import Culprits, Fact, Pattern, Record, RightAnswer
from ddx_evals.simulator import KINDS
from ddx_tools.knowledge.load import YAMLError, load_yaml
from ddx_tools.knowledge.resources import lab_dir
from ddx_tools.model.errors import UsageError

DIRECTORY = "large"
Moment = Literal["start", "strike", "timeout", "end"]
"""The launch; the last event before a hang; the first watchdog report; the moment when the launcher gives up.

In a job that keeps running, the last three are the time of capture.
"""


class Shape(Record):
    """Sizes of the axes; expert parallelism cuts dp into blocks of `ep`."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """The world size."""
        return self.pp * self.dp * self.tp


class Saying(Record):
    """Output of some ranks, hosts or the launcher in addition to the ordinary output.

    `Cluster.filled` says which `$names` are filled in.
    """

    who: tuple[int, ...] | Literal["all", "launcher"]
    text: str
    since: Moment = "strike"
    at_s: float = 0.0
    spread_s: float = Field(default=0.0, description="The spread of the times at which they print it.")


class Brought(Record):
    """A file that was collected from every host, and different contents on certain hosts."""

    name: str = Field(description="Path in the collected files, with `$host`.")
    text: str = Field(default="", description="Empty: no such file from these hosts.")
    instead: dict[str, str] = Field(default_factory=dict)


class Stacks(Record):
    """A stack dump of every rank, taken during the hang. A waiting rank shows the call that it waits in."""

    name: str = "stacks/rank_$rank.txt"
    instead: dict[int, tuple[str, ...]] = Field(
        description="For each rank its frames, `function (file:line)`, innermost first."
    )


class DeclaredAnswer(Record):
    """The right answer: the truth, except for what follows from the job."""

    prompt: str
    cause: str
    accept: tuple[str, ...] = ()
    culprits: Culprits | None = Field(default=None, description="None: those of the job, if it is diagnosed.")
    innocent: tuple[str, ...] = ()
    evidence: tuple[Fact, ...] = ()
    full: RightAnswer
    log_only: RightAnswer
    deciding_fact: str
    deciding_words: Pattern
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""


class Declaration(Record):
    """One large incident."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    title: str
    family: str = Field(description="One kind of fault in one kind of job; each family belongs to one split.")
    split: Literal["dev", "test"]
    incident: Annotated[str, Field(pattern=r"^[0-9a-f]{6}$")]
    seed: int
    shape: Shape
    job: Annotated[str, Field(description="A kind of fault in the simulator.")]
    rank: int | None = Field(default=None, description="The rank at fault, as the simulator defines it.")
    dumps: Literal["pickle", "json", "none"] = "pickle"
    ring: int = Field(default=40, description="Entries that a recorder keeps.")
    timeout_s: int = 600
    logs: Literal["rank", "node"] = "rank"
    lines: int = Field(default=14, description="Steps that each rank printed.")
    quiet_s: float = Field(default=0.0, description="The ordinary lines stop this long before the strike.")
    watchdogs: bool = Field(default=True, description="Whether waiting ranks print their timeouts.")
    ends: bool = Field(default=True, description="Whether the launcher gave up, after a hang.")
    launcher: Literal["torchrun", "pdsh"] = Field(
        default="torchrun", description="pdsh does not notice the death of a rank."
    )
    communicators: bool = Field(default=True, description="Whether NCCL got through its initialisation.")
    wording: tuple[str, ...] = Field(default=(), description="Named blocks of noise from `evals/lab/wording`.")
    lost_hosts: tuple[str, ...] = Field(default=(), description="Hosts from which nothing was collected.")
    silent: tuple[int, ...] = Field(default=(), description="Ranks that print nothing after the strike.")
    says: tuple[Saying, ...] = ()
    files: tuple[Brought, ...] = ()
    stacks: Stacks | None = None
    answer: DeclaredAnswer


def declarations(directory: Path | None = None) -> dict[str, Declaration]:
    """All declarations by id. Raises UsageError if one is invalid."""
    found = {}
    for file in sorted((directory or lab_dir() / DIRECTORY).glob("*.yaml")):
        try:
            declared = Declaration.model_validate(load_yaml(file.read_text(encoding="utf-8")))
        except (OSError, YAMLError, ValidationError) as error:
            raise UsageError(f"{file}: {error}") from error
        if declared.id != file.stem or declared.job not in KINDS:
            raise UsageError(f"{file}: declares {declared.id!r}, a job of kind {declared.job!r}")
        found[declared.id] = declared
    return found
