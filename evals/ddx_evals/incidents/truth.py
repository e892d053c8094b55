"""`truth.yaml`: what is right to say about an incident in each of its views, and how it came to be."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from fnmatch import fnmatch
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ddx_tools.model.diagnosis import Verdict

CANARY = "ddx-incident-canary 5f0d6c1e-7a3b-4c92-9e58-2b1f60d7a4c3: truth of an evaluation, not for training"
"""Stands in every recorded truth, so that a corpus that took one in can be found out."""


class View(StrEnum):
    """How much of an incident is replayed."""

    FULL = "full"
    LOG_ONLY = "log-only"
    """Only what the launcher and the ranks printed: what most people have."""
    PARTIAL = "partial"
    """Stacks and records of some ranks are missing, and records of others begin late."""


class Record(BaseModel):
    """Base of everything in a truth: a misspelt key is an error."""

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
    """A place in the program: `file` is the end of a path, such as `train.py`; function or line, one is enough."""

    file: str
    function: str | None = None
    line: int | None = None


class Culprits(Record):
    """Who is to blame. What is empty is not asked for."""

    ranks: tuple[int, ...] = ()
    or_ranks: tuple[tuple[int, ...], ...] = Field(default=(), description="Other sets of ranks that are as right.")
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    locations: tuple[Place, ...] = Field(default=(), description="Any one of them is the place.")

    @property
    def rank_sets(self) -> tuple[frozenset[int], ...]:
        """The sets of ranks that are right."""
        return tuple(frozenset(ranks) for ranks in (self.ranks, *self.or_ranks) if ranks)


class TruthLayout(Record):
    """Where the ranks of the job are: what makes a wrong rank a near miss."""

    hosts: dict[str, tuple[int, ...]] = Field(default_factory=dict, description="Ranks by host.")
    group: tuple[int, ...] = Field(
        default=(), description="The smallest process group with the culprits, if it is not the whole job."
    )


class Fact(Record):
    """A key fact: a diagnosis that rests on evidence quotes one of them."""

    artefact: str = Field(description="Glob of the file in the bundle that shows it.")
    pattern: Pattern = Field(description="Matches the quote.")
    needs_looking: bool = Field(default=False, description="No log gives it: somebody had to look.")

    def found_in(self, name: str, text: str) -> re.Match[str] | None:
        """Where a file that a view holds shows it, if it does. A view may keep the file under another name."""
        named = fnmatch(name, self.artefact) or not name.startswith("raw/")
        return re.search(self.pattern, text) if named else None


class DecidingLine(Record):
    """A line that a strong engineer must have seen to name the cause; of a long one a distinctive part."""

    file: str
    line: str


class RightAnswer(Record):
    """What is right to answer where only one view is seen."""

    verdict: Verdict
    check: Pattern = Field(default="", description="Matches the next check that settles it, where undecided is right.")


class Provenance(Record):
    """How the incident came to be."""

    kind: Literal["recorded", "transcribed", "constructed", "simulated"]
    scenario: str = ""
    command: str = Field(default="", description="Makes it again.")
    seed: int | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    date: dt.date | None = None


class Hardness(Record):
    """How hard it is, measured: easy is what one of the baselines without a model solves by the log alone."""

    tag: Literal["easy", "medium", "hard"]
    measured_by: str


class Truth(Record):
    """The truth about one incident. An agent never sees it."""

    id: str = ""
    url: str = ""
    """The thread that it is from."""
    prompt: str = "Something is wrong with this training job. What is it, and why?"
    cause: str
    """Id of a cause; or `healthy`, or `undecided` where nothing can be told."""
    accept: tuple[str, ...] = ()
    """Further causes that are right."""
    category: str = ""
    culprits: Culprits = Culprits()
    layout: TruthLayout = TruthLayout()
    innocent: tuple[str, ...] = ()
    """Tempting wrong causes."""
    evidence: tuple[Fact, ...] = ()
    views: dict[View, RightAnswer] = Field(default_factory=dict)
    deciding_fact: str
    deciding_words: Pattern = ""
    """Matches the next check of a good undecided answer; without it, what such an answer asks is not scored."""
    deciding_lines: tuple[DecidingLine, ...] = ()
    """What an answer that is not decided has to hand over."""
    determinable: Literal["yes", "partly", "no"] = "yes"
    """Whether an expert names the cause from the material: surely, as the first hypothesis of several, or not."""
    minimal_probes: tuple[str, ...] = ()
    fix_class: str = ""
    provenance: Provenance | None = None
    hardness: Hardness | None = None
    canary: str = ""

    @property
    def right_causes(self) -> frozenset[str]:
        """The ids that are right."""
        return frozenset({self.cause, *self.accept})

    @model_validator(mode="after")
    def _has_a_full_view(self) -> Truth:
        if View.FULL not in self.views:
            verdicts = {"healthy": Verdict.HEALTHY, "undecided": Verdict.UNDECIDED}
            full = RightAnswer(verdict=verdicts.get(self.cause, Verdict.DIAGNOSED), check=self.deciding_words)
            object.__setattr__(self, "views", {View.FULL: full, **self.views})
        return self
