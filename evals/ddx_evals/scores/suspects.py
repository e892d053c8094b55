"""Scores the suspects, apart from the causes.

No cause page takes part in the judgement. The suspects of a view are *exact* if they are one of the sets of ranks that
the truth blames; views without a determinable cause, and truths that blame no ranks, do not count. For healthy jobs, it
counts those where no rank is named as `seen`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

from ddx_evals.incidents import Incident, View, staged_of, unpacked
from ddx_evals.terminal.tables import ScoreTable
from ddx_tools.diagnosis.playbook import Playbooks, load_playbooks
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Certainty, Verdict
from ddx_tools.sources.bundle import is_bundle

_MOST_RANKS = 16


@dataclass(frozen=True)
class SuspectScore:
    """The suspects in one view of an incident."""

    case: str
    healthy: bool
    ranks: tuple[int, ...]
    right: bool
    """Whether they are exactly a right set of ranks; for a healthy job, whether there are none."""


@cache
def without_causes() -> Playbooks:
    """The shipped playbooks without the cause pages, so that only observations remain."""
    return Playbooks([page.model_copy(update={"next_check": []}) for page in load_playbooks().symptoms.values()])


def score(incident: Incident, views: Collection[View] = tuple(View)) -> list[SuspectScore]:
    """Score those of `views` that can show the incident's culprits, or that there are none."""
    scores = []
    sets = incident.truth.culprits.rank_sets
    with unpacked(incident) as whole:
        for view in [view for view in incident.views if view in views]:
            healthy = incident.truth.cause == Verdict.HEALTHY
            if not healthy and not (sets and incident.truth.views[view].verdict is Verdict.DIAGNOSED):
                continue
            as_it_is = view is View.FULL and is_bundle(whole)
            with nullcontext(whole) if as_it_is else staged_of(whole, incident, view) as material:
                said = investigate([str(material)]).diagnose(without_causes())
            counted = [s for s in said.suspects if not healthy or s.certainty is Certainty.SEEN]
            ranks = frozenset(rank for suspect in counted for rank in suspect.ranks)
            right = not counted if healthy else ranks in sets
            scores.append(SuspectScore(f"{incident.split}/{incident.id}/{view}", healthy, tuple(sorted(ranks)), right))
    return scores


def shares(scores: Iterable[SuspectScore]) -> dict[str, tuple[int, int]]:
    """(right, total) for faulty and for healthy views."""
    counted = {"culprits exact": (0, 0), "healthy with nobody named": (0, 0)}
    for each in scores:
        name = "healthy with nobody named" if each.healthy else "culprits exact"
        right, every = counted[name]
        counted[name] = right + each.right, every + 1
    return counted


def table(scores: Iterable[SuspectScore]) -> ScoreTable:
    """A table with one row per view with wrong suspects."""
    wrong = [each for each in scores if not each.right]
    rows = [[each.case, ", ".join(map(str, each.ranks[:_MOST_RANKS])) or "nobody"] for each in wrong]
    return ScoreTable(["wrong in", "suspected"], rows, text=2)
