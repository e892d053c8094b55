"""Data models passed between stages: findings, probe results and the diagnosis.

The terminal, `--json`, the MCP tools and the evals share one definition, so every field is part of the public
contract (`ddx schema` prints it as JSON Schema).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddx_tools.model.rank_spans import rank_spans, runs


class Contract(BaseModel):
    """Base of the models in the public contract: unknown fields are errors, not noise."""

    # Validators are built on first use, so that `--help` does not pay for them.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Severity(StrEnum):
    """How serious a finding is for the job, whatever its cause."""

    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    FAILURE = "failure"


class Location(Contract):
    """A place in the user's program."""

    file: str
    line: int | None = None
    function: str | None = None
    source: str | None = Field(None, description="The text of the line, if it could be read.")

    def short(self) -> str:
        """The place in short: last two parts of the path, line and function, as in `train.py:41 step`."""
        parts = self.file.replace("\\", "/").rsplit("/", 2)
        where = parts[-1] if self.line is None else f"{parts[-1]}:{self.line}"
        return f"{where} {self.function}" if self.function else where


def distinct(places: Iterable[Location | None]) -> list[Location]:
    """The given places without None and repetitions, in order."""
    return list({(at.file, at.line, at.function): at for at in places if at is not None}.values())


class Evidence(Contract):
    """A source to open: a file in the bundle and its line, or a key of a table."""

    source: str = Field(description="Path inside the bundle, or `table:key`.")
    line: int | None = Field(None, description="First line, 1-based, if the source is text.")
    quote: str = Field("", description="The words that it rests on, verbatim and bounded.")


class Finding(Contract):
    """One observation. It says what was seen, never why."""

    code: str = Field(description="`<subject>.<observation>`, registered in ddx_tools.knowledge.finding_codes.")
    severity: Severity = Severity.NOTICE
    ranks: list[int] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    group: str | None = None
    summary: str
    evidence: list[Evidence] = Field(default_factory=list)
    locations: list[Location] = Field(
        default_factory=list, description="Where in the user's program the ranks of this finding are."
    )
    attributes: dict[str, Any] = Field(default_factory=dict)


class NextProbe(Contract):
    """A probe to run next, and why."""

    probe: str
    args: dict[str, Any] = Field(default_factory=dict)
    why: str


class ProbeStatus(StrEnum):
    """Whether a probe got any material; what it saw is in its findings."""

    OK = "ok"
    PARTIAL = "partial"
    NO_DATA = "no_data"
    NOT_RECORDED = "not_recorded"


class Truncation(Contract):
    """What was cut from an answer, and how to get the rest."""

    shown: int
    total: int
    how: str


class ProbeResult(Contract):
    """The answer of a probe, the same for people and agents."""

    probe: str
    status: ProbeStatus
    summary: str
    findings: list[Finding] = Field(default_factory=list)
    searched: list[str] = Field(default_factory=list, description="What was looked for, and where.")
    table: list[dict[str, Any]] = Field(default_factory=list, description="The rows behind the findings, bounded.")
    problems: list[str] = Field(default_factory=list, description="What could not be read, why, what to do.")
    truncated: list[Truncation] = Field(default_factory=list)
    next: list[NextProbe] = Field(default_factory=list)
    origins: dict[str, str] = Field(
        default_factory=dict, description="For each source in the evidence: what it was on the host."
    )


class Verdict(StrEnum):
    """The verdict of a diagnosis: how far its answer reaches."""

    DIAGNOSED = "diagnosed"
    UNDECIDED = "undecided"
    HEALTHY = "healthy"


class Level(StrEnum):
    """How well a cause is supported: by deciding evidence, by supporting evidence, or only possible."""

    ESTABLISHED = "established"
    SUPPORTED = "supported"
    HYPOTHESIS = "hypothesis"


class Party(Contract):
    """The culprits of a cause, or its victims."""

    ranks: list[int] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    devices: list[str] = Field(default_factory=list)
    locations: list[Location] = Field(default_factory=list)


class Claim(Contract):
    """A piece of evidence that a diagnosis cites."""

    finding: str
    claim: str
    source: str = Field("", description="What shows it: the arguments of `ddx show`.")
    line: int | None = None
    quote: str = Field("", description="Verbatim from the output of that command.")


class CandidateCause(Contract):
    """A cause in the differential, with its probability and what supports or contradicts it."""

    id: str
    title: str
    category: str
    probability: float = Field(ge=0, le=1)
    level: Level
    culprits: Party = Field(default_factory=Party)
    supports: list[str] = Field(default_factory=list)
    against: list[str] = Field(default_factory=list, description="Only in agents' answers; ddx uses `ruled_out`.")

    @property
    def percent(self) -> str:
        """Its probability as text; empty below one half, where only the order of causes holds for new kinds of jobs."""
        return f"{self.probability:.0%} " if self.probability >= 0.5 else ""


class Narrowed(Contract):
    """The most specific cause that is safe to name."""

    id: str
    title: str
    mass: float = Field(ge=0, le=1, description="The combined probability of it and of all causes that refine it.")


class RuledOut(Contract):
    """A cause that the evidence contradicts."""

    id: str
    why: str


class NextCheck(Contract):
    """The probe or question that best separates the leading causes."""

    probe: str = Field(description="A probe of `ddx`, or `ask` for a question to a person.")
    args: dict[str, Any] = Field(default_factory=dict)
    question: str
    separates: list[str] = Field(default_factory=list)


class Missing(Contract):
    """What could not be captured, and why that matters."""

    what: str
    why_it_matters: str


HOST_NOT_LOOKED_AT = "nothing is known about the ranks there"
"""`Missing.why_it_matters` of a host that did not answer."""
NOT_LOOKED_AT = "its contents were not examined"
"""`Missing.why_it_matters` of material that was not read."""


class SuspectEvent(StrEnum):
    """The event that makes ranks suspects, whatever its cause."""

    ENDED = "ended"
    ABSENT = "absent"
    OUTSIDE = "outside"
    MISMATCHED = "mismatched"
    LATE = "late"
    SILENT = "silent"


class Certainty(StrEnum):
    """How certain it is that ranks block the job."""

    SEEN = "seen"
    LIKELY = "likely"


class Seat(Contract):
    """Where a rank runs, as far as known."""

    rank: int
    host: str | None = None
    local_rank: int | None = None


class Suspect(Contract):
    """Ranks that block the job, and the event that makes them suspects; the cause is a separate question."""

    ranks: list[int] = Field(default_factory=list, description="Empty if it is unknown which rank it was.")
    event: SuspectEvent
    hosts: list[str] = Field(default_factory=list)
    seats: list[Seat] = Field(default_factory=list, description="Host and local rank of these ranks, where known.")
    certainty: Certainty = Certainty.SEEN
    unless: str = Field("", description="What would make them innocent, unless that is excluded.")
    says: str = Field(description="What was seen of them, as one sentence.")
    locations: list[Location] = Field(default_factory=list)
    evidence: list[Claim] = Field(default_factory=list)
    otherwise: list[str] = Field(default_factory=list, description="What points at other ranks instead.")


class Event(Contract):
    """What happened to the job."""

    what: SuspectEvent
    summary: str


class Aspect(Contract):
    """One row of the comparison of a suspect with its peers."""

    what: str = Field(
        description="place, call, called from, collective, group, sizes, last in common, last step, watchdog, raised."
    )
    suspect: str
    peers: str


class Differs(Contract):
    """A suspect compared with its peers, in two columns."""

    suspect: str
    peers: str
    aspects: list[Aspect]


class SourceLines(Contract):
    """Source lines of the program around a place."""

    file: str
    line: int
    guard: int | None = Field(None, description="Line of the condition or loop around it.")
    lines: list[str] = Field(description="`82: text`, in the order of the file.")


class CasePart(Contract):
    """Consecutive lines of one source, verbatim."""

    at: str = Field(description="What shows it from its first line on: the arguments of `ddx show`.")
    text: str
    says: str = Field("", description="How rare it is, or how it differs from similar lines.")


class CaseFile(Contract):
    """The parts of the material most likely to decide, for a reader to judge; no cause's rules chose them."""

    whole: bool = Field(False, description="The parts contain all of the material.")
    parts: list[CasePart] = Field(default_factory=list, description="People's notes, then the most distinctive lines.")
    left_out: list[str] = Field(default_factory=list, description="Texts with further lines that are not included.")


class Diagnosis(Contract):
    """The answer to "why is my job hung?": the same JSON everywhere."""

    schema_: Literal["ddx.diagnosis/1", "ddx.diagnosis/2", "ddx.diagnosis/3"] = Field(
        "ddx.diagnosis/3", alias="schema", description="As printed, version 3 has every key, even without a value."
    )
    verdict: Verdict
    headline: str
    event: Event | None = None
    suspects: list[Suspect] = Field(default_factory=list, description="Ranks that block the job, whatever the cause.")
    causes: list[CandidateCause] = Field(default_factory=list)
    narrowed_to: Narrowed | None = Field(
        None, description="How far the evidence reaches: the cause if diagnosed, else a node above the open causes."
    )
    culprits: Party = Field(default_factory=Party)
    victims: Party = Field(default_factory=Party)
    differs: Differs | None = Field(None, description="The suspect compared with its peers.")
    good_run: Differs | None = Field(None, description="What differs from a healthy run (`--good`).")
    source_lines: SourceLines | None = Field(None, description="The program around the suspect's place.")
    similar: list[str] = Field(default_factory=list, description="Similar known cases. They are no evidence.")
    peer_lines: SourceLines | None = Field(
        None, description="Where peers took another branch of a condition that the suspect passed."
    )
    noted: list[str] = Field(default_factory=list, description="How what people wrote about the job was used.")
    chain: list[str] = Field(default_factory=list)
    evidence: list[Claim] = Field(default_factory=list)
    ruled_out: list[RuledOut] = Field(default_factory=list)
    fix: list[str] = Field(default_factory=list)
    suggestion: list[str] = Field(
        default_factory=list, description="Lines of a unified diff of the program: a suggestion, never applied."
    )
    verify: list[str] = Field(default_factory=list)
    next_check: NextCheck | None = None
    missing: list[Missing] = Field(default_factory=list)
    case: CaseFile = Field(default_factory=CaseFile, description="What to read if no cause is established.")
    looked_at: list[str] = Field(default_factory=list)
    """The material that was examined, in numbers."""
    changed: list[str] = Field(default_factory=list, description="What submitted facts and findings changed.")
    shown_by: str = Field("", description="The command that shows a source.")
    rank_ranges: dict[str, str] = Field(
        default_factory=dict, description="Ranges for suspects, culprits and victims with too many ranks to list."
    )
    truncated: list[dict[str, Any]] = Field(
        default_factory=list, description="Lists that were cut: what, shown, total, and how to get the rest."
    )

    model_config = ConfigDict(extra="forbid", populate_by_name=True, defer_build=True)

    @model_validator(mode="after")
    def _with_all_ranks(self) -> Diagnosis:
        """Expand `rank_ranges` into numbers again, unless the ranges were cut and do not name all ranks."""
        from ddx_tools.model.errors import UsageError
        from ddx_tools.model.rank_ranges import parse_ranks

        for name, party in (("culprits", self.culprits), ("victims", self.victims)):
            if name in self.rank_ranges and not party.ranks:
                with contextlib.suppress(UsageError):
                    party.ranks = parse_ranks(self.rank_ranges[name])
        return self


def lean_json(model: BaseModel) -> str:
    """Serialise a model as JSON without optional fields that are empty (None, no text, an empty list)."""
    from pydantic_core import to_json

    return to_json(_lean(model), indent=2, inf_nan_mode="null").decode()


def _lean(value: Any) -> Any:
    if isinstance(value, list):
        return [_lean(inner) for inner in value]
    if not isinstance(value, BaseModel):
        return value
    told = ((name, field, _lean(getattr(value, name))) for name, field in type(value).model_fields.items())
    return {
        field.alias or name: inner
        for name, field, inner in told
        if field.is_required() or inner not in (None, "", [], {})
    }


def rank_list(ranks: list[int] | set[int], nobody: str = "no rank") -> str:
    """Ranks in words: `rank 3`, `ranks 0-2, 5`, `ranks 1-127 step 2`, or `nobody` if there are none.

    Long lists are cut.
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return nobody
    text = ", ".join(runs(ordered)) if len(ordered) < _FOLDED_FROM else rank_spans(ordered, most=8)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


_FOLDED_FROM = 9
"""Fewer ranks than this are listed individually."""
