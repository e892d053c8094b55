"""What an investigation brought to light, and the answer that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddx_tools.analysis.suspects import with_suspects
from ddx_tools.asked import answers
from ddx_tools.diagnose import diagnose
from ddx_tools.handed_in import changes_of
from ddx_tools.looking.frameworks import own_fixes
from ddx_tools.looking.names import Names, named
from ddx_tools.looking.sight import Sight
from ddx_tools.model import Diagnosis, Finding, Missing, ProbeResult, Seat
from ddx_tools.next_check import within_reach
from ddx_tools.playbook import Playbooks, load_playbooks


@dataclass
class Investigation:
    """What an investigation brought to light."""

    findings: list[Finding] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    results: list[ProbeResult] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """For each raw file of the bundle: what was asked of the host to get it."""
    looked_at: list[str] = field(default_factory=list)
    """What there was to look at: lines for a person."""
    seats: dict[int, Seat] = field(default_factory=dict)
    """Where each rank runs, as far as known."""
    unanswered: list[str] = field(default_factory=list)
    """Of many hosts, those that did not answer or not wholly, why, and what to do."""
    names: Names = field(default_factory=Names)
    """What evidence calls what it rests on."""
    sight: Sight = field(default_factory=Sight)
    """The suspects beside their peers, and the program where they are."""
    said: list[str] = field(default_factory=list)
    """What people wrote about the job."""
    told: list[Finding] = field(default_factory=list)
    """What was handed in beside the material; it is among the findings, too."""
    frameworks: frozenset[str] = frozenset()
    """In whose files the frames of ranks lie."""
    live: bool = False
    """A running job was looked at, which can be asked more."""

    def diagnose(self, playbooks: Playbooks | None = None) -> Diagnosis:
        """Who it is, and why in the judgement of the shipped playbooks (or of others: who it is rests on none)."""
        said = self.sight.of(self.judge(playbooks))
        more: dict[str, object] = {
            "looked_at": self.looked_at,
            "next_check": within_reach(said.next_check, live=self.live),
            "asked": answers(self.said, said),
            "fix": [*(own_fixes(said.causes[0].id, self.frameworks) if said.fix else ()), *said.fix],
        }
        if self.told:
            own = [finding for finding in self.findings if not any(finding is told for told in self.told)]
            before = replace(self, findings=own, told=[]).judge(playbooks)
            more["changed"] = changes_of(before, said, len(self.told))
        said = said.model_copy(update=more)
        return named(said, self.names, self.findings)

    def judge(self, playbooks: Playbooks | None = None) -> Diagnosis:
        """The bare judgement of the findings."""
        said = diagnose(self.findings, playbooks or load_playbooks(), self.missing)
        return with_suspects(said, self.findings, self.seats)
