"""`truth.yaml`: the right answer to an incident in each of its views, and its provenance."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from fnmatch import fnmatch
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ddx_tools.model.diagnosis import Verdict

CANARY = "ddx-incident-canary 5f0d6c1e-7a3b-4c92-9e58-2b1f60d7a4c3: truth of an evaluation, not for training"
"""Contained in every recorded truth, so that a training corpus that includes one can be detected."""


class View(StrEnum):
    """How much of an incident is replayed."""

    FULL = "full"
    LOG_ONLY = "log-only"
    """Only the output of the launcher and the ranks, which is what most people have."""
    PARTIAL = "partial"
    """Stacks and records of some ranks are missing, and records of others begin late."""


class Record(BaseModel):
    """Base of everything in a truth: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression."""


class Place(Record):
    """A place in the program: `file` is the end of a path, such as `train.py`; a function or a line is enough."""

    file: str
    function: str | None = None
    line: int | None = None


class Culprits(Record):
    """The culprits. Empty fields are not scored."""

    ranks: tuple[int, ...] = ()
    or_ranks: tuple[tuple[int, ...], ...] = Field(default=(), description="Other sets of ranks that are equally right.")
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    locations: tuple[Place, ...] = Field(default=(), description="Any of these counts as the place.")

    @property
    def rank_sets(self) -> tuple[frozenset[int], ...]:
        """The right sets of ranks."""
        return tuple(frozenset(ranks) for ranks in (self.ranks, *self.or_ranks) if ranks)


class TruthLayout(Record):
    """The placement of the job's ranks, which decides whether a wrong rank is a near miss."""

    hosts: dict[str, tuple[int, ...]] = Field(default_factory=dict, description="Ranks by host.")
    group: tuple[int, ...] = Field(
        default=(), description="The smallest process group that contains the culprits, if it is not the whole job."
    )


class Fact(Record):
    """A key fact; a grounded diagnosis quotes one of them."""

    artefact: str = Field(description="Glob of the file in the bundle that shows it.")
    pattern: Pattern = Field(description="Matches the quote.")
    needs_looking: bool = Field(default=False, description="No log shows it: it had to be captured.")

    def found_in(self, name: str, text: str) -> re.Match[str] | None:
        """Find the fact in a file of a view, or None. A view may have the file under another name."""
        named = fnmatch(name, self.artefact) or not name.startswith("raw/")
        return re.search(self.pattern, text) if named else None


class DecidingLine(Record):
    """A line that a strong engineer needs to name the cause; for a long line, a distinctive part."""

    file: str
    line: str


class RightAnswer(Record):
    """The right answer if only this view is seen."""

    verdict: Verdict
    check: Pattern = Field(default="", description="Matches the next check that settles it, if undecided is right.")


class Provenance(Record):
    """How the incident was made."""

    kind: Literal["recorded", "transcribed", "constructed", "simulated"]
    scenario: str = ""
    command: str = Field(default="", description="The command that recreates it.")
    seed: int | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    date: dt.date | None = None


class Hardness(Record):
    """The measured hardness: easy means that a baseline without a model solves it from the log."""

    tag: Literal["easy", "medium", "hard"]
    measured_by: str


class Truth(Record):
    """The truth about one incident, never shown to an agent."""

    id: str = ""
    url: str = ""
    """The URL of its thread."""
    prompt: str = "Something is wrong with this training job. What is it, and why?"
    cause: str
    """The id of a cause; or `healthy`, or `undecided` if the cause cannot be determined."""
    accept: tuple[str, ...] = ()
    """Other accepted causes."""
    category: str = ""
    culprits: Culprits = Culprits()
    layout: TruthLayout = TruthLayout()
    innocent: tuple[str, ...] = ()
    """Tempting wrong causes."""
    evidence: tuple[Fact, ...] = ()
    views: dict[View, RightAnswer] = Field(default_factory=dict)
    deciding_fact: str
    deciding_words: Pattern = ""
    """Matches the next check of a good undecided answer; without it, the question of such an answer is not scored."""
    deciding_lines: tuple[DecidingLine, ...] = ()
    """The lines that an undecided answer must contain."""
    determinable: Literal["yes", "partly", "no"] = "yes"
    """Whether an expert can name the cause from the material: with certainty, as the first of several guesses, or
    not."""
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""
    provenance: Provenance | None = None
    hardness: Hardness | None = None
    canary: str = ""

    @property
    def right_causes(self) -> frozenset[str]:
        """The ids of all accepted causes."""
        return frozenset({self.cause, *self.accept})

    @model_validator(mode="after")
    def _has_a_full_view(self) -> Truth:
        if View.FULL not in self.views:
            verdicts = {"healthy": Verdict.HEALTHY, "undecided": Verdict.UNDECIDED}
            full = RightAnswer(verdict=verdicts.get(self.cause, Verdict.DIAGNOSED), check=self.deciding_words)
            object.__setattr__(self, "views", {View.FULL: full, **self.views})
        return self
