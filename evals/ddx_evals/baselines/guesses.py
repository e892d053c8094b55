"""Answers that ignore the material: a figure means something only if it beats these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from ddx_evals.baselines.answers import diagnosed, undecided
from ddx_evals.baselines.case import Answer, Baseline, Case
from ddx_evals.incidents import Incident
from ddx_tools.model.diagnosis import Level, Party, Verdict

_OF_RANK_0 = "slow-rank-before-collective"
"""The most general cause that blames a rank."""


def null(case: Case) -> Answer:
    """Always answer undecided, without a question."""
    return Answer(undecided())


def rank0(case: Case) -> Answer:
    """Blame rank 0, which prints the most and has extra duties."""
    guess = diagnosed(_OF_RANK_0, Party(ranks=[0]), [], probability=0.5, level=Level.HYPOTHESIS)
    return Answer(guess)


def majority(incidents: Sequence[Incident]) -> Baseline:
    """A baseline that always names the most frequent cause of these incidents."""
    causes = Counter(incident.truth.cause for incident in incidents)
    named = [(count, cause) for cause, count in causes.items() if cause not in (Verdict.HEALTHY, Verdict.UNDECIDED)]
    most_frequent = max(named, default=(0, _OF_RANK_0))
    return partial(_always, most_frequent[1])


def _always(cause: str, case: Case) -> Answer:
    return Answer(diagnosed(cause, Party(), [], probability=0.5, level=Level.HYPOTHESIS))
