"""The result of an investigation: findings, rows and the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddx_tools.diagnosis.checks import within_reach
from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import Playbooks, load_playbooks
from ddx_tools.diagnosis.submitted import changes_of
from ddx_tools.diagnosis.submitted_effect import why_unchanged
from ddx_tools.diagnosis.suspects import doubting_silence, with_suspects
from ddx_tools.investigation.show.addresses import Names, named
from ddx_tools.investigation.show.frameworks import own_fixes
from ddx_tools.investigation.show.jobs_of_hosts import JobsByRank, headline_with_job
from ddx_tools.investigation.show.suspect_view import Sight
from ddx_tools.model.basis import HANDED_IN
from ddx_tools.model.diagnosis import CaseFile, Diagnosis, Finding, Missing, ProbeResult, Seat, Severity, Verdict

if TYPE_CHECKING:
    from ddx_tools.diagnosis.casebook import Similar
    from ddx_tools.diagnosis.waits import Waits
    from ddx_tools.model.versions import Version

_MOST_COMPARED, _MOST_COMPARED_CHARS = 400, 100_000
_NOT_INTERPRETED = "ddx quotes notes but does not judge by them: give what you know as facts (ddx facts)"


@dataclass
class Investigation:
    """Findings, gaps and derived views of an investigation; `diagnose` gives the answer."""

    findings: list[Finding] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    is_incomplete: bool = False
    """Whether files of the bundle are missing or damaged."""
    lacking: list[Missing] = field(default_factory=list)
    """The part of `missing` that a bundle no longer holds, or not as it was captured."""
    results: list[ProbeResult] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """For each raw file of the bundle, the host query that returned it."""
    looked_at: list[str] = field(default_factory=list)
    """What was examined, as lines for a person."""
    seats: dict[int, Seat] = field(default_factory=dict)
    """Where each rank runs, as far as known."""
    unanswered: list[str] = field(default_factory=list)
    """Hosts that did not answer, or only in part: why, and what to do."""
    names: Names = field(default_factory=Names)
    """The names of sources in evidence."""
    waits: Waits | None = None
    """Who waits for whom, and the roots of the waits."""
    sight: Sight = field(default_factory=Sight)
    """The suspects compared with their peers, and the program text where they are."""
    said: list[str] = field(default_factory=list)
    """Notes that people wrote about the job."""
    told: list[Finding] = field(default_factory=list)
    """Findings that were submitted; they are also among `findings`."""
    case: CaseFile = field(default_factory=CaseFile)
    """The parts of the material that may decide."""
    frameworks: frozenset[str] = frozenset()
    """The frameworks whose files appear in the ranks' frames."""
    jobs: JobsByRank = field(default_factory=dict)
    """For hosts with several jobs, the jobs of each rank."""
    live: bool = False
    """Whether the job is live and can be queried further."""
    versions: Mapping[str, Version] = field(default_factory=dict)
    """Versions of torch, nccl and the driver on which all sources agree."""
    not_similar: Collection[str] = ()
    """Casebook links to leave out: a scored incident must not find itself."""
    _judged: tuple[object, Diagnosis] | None = field(default=None, init=False, repr=False, compare=False)

    def diagnose(self, playbooks: Playbooks | None = None) -> Diagnosis:
        """The diagnosis: suspects from the evidence, causes from the shipped playbooks (or others)."""
        said = self.sight.of(self.judge(playbooks))
        is_open = said.verdict is Verdict.UNDECIDED
        more: dict[str, object] = {
            "looked_at": self.looked_at,
            "case": self.case,
            "headline": headline_with_job(said, self.jobs, self.findings),
            "next_check": within_reach(said.next_check, live=self.live),
            "noted": [_NOT_INTERPRETED] if is_open and any(text.strip() for text in self.said) else [],
            "fix": [*(own_fixes(said.causes[0].id, self.frameworks) if said.fix else ()), *said.fix],
        }
        if self.told:
            own = [finding for finding in self.findings if not any(finding is told for told in self.told)]
            before = replace(self, findings=own, told=[]).judge(playbooks)
            more["changed"] = changes_of(
                before, said, len(self.told), lambda: why_unchanged(self.told, own, said, playbooks)
            )
        more["similar"] = [one.line() for one in self.similar(said, 1) if one.strong]
        said = said.model_copy(update=more)
        return named(said, self.names, self.findings)

    def similar(self, said: Diagnosis, most: int, about: str = "") -> list[Similar]:
        """The known cases most like this one, whose answer is `said`; `about` adds words to search for."""
        from ddx_tools.diagnosis.casebook import Present, similar

        seen = [one for one in self.findings[:_MOST_COMPARED] if one.attributes.get("basis") != HANDED_IN]
        quotes = [evidence.quote for one in seen for evidence in one.evidence[:2]]
        summaries = [one.summary for one in seen if one.severity is not Severity.INFO]
        text = "\n".join([about, *self.said, *quotes, *summaries])
        causes = [cause.id for cause in said.causes]
        present = Present(text[:_MOST_COMPARED_CHARS], causes, {out.id for out in said.ruled_out}, self.versions)
        return similar(present, most, self.not_similar)

    def judge(self, playbooks: Playbooks | None = None) -> Diagnosis:
        """Diagnose the findings with playbooks (default: those shipped), without what `diagnose` adds.

        That method adds views, similar cases and framework fixes. The result is cached until the findings, the gaps or
        the playbooks change.
        """
        by = playbooks or load_playbooks()
        gaps = tuple(gap.what for gap in self.missing)
        state = (id(by), tuple(map(id, self.findings)), gaps, len(self.seats), id(self.waits), self.is_incomplete)
        if self._judged is None or self._judged[0] != state:
            self._judged = (state, self._judgement(by))
        return self._judged[1]

    def _judgement(self, by: Playbooks) -> Diagnosis:
        if self.waits is None:
            return with_suspects(diagnose(self.findings, by, self.missing), self.findings, self.seats)
        from ddx_tools.diagnosis.headline import with_detail, with_headline
        from ddx_tools.diagnosis.waits import agreeing, blaming_findings, with_waits

        findings = agreeing(self.findings, self.waits)
        roots = [one.model_copy(deep=True) for one in self.waits.suspects]
        said = diagnose(findings, by, self.missing)
        blaming = blaming_findings(findings, self.waits)
        said = with_suspects(
            said, blaming, self.seats, roots, len(self.waits.graph.ranks), set(self.waits.roots.circle)
        )
        if self.is_incomplete:
            said = doubting_silence(said)
        return with_detail(with_headline(with_waits(said, self.waits), self.waits, self.seats), findings)
