"""Answers without a model: the baselines for every figure."""

from __future__ import annotations

from collections.abc import Sequence

from ddx_evals.baselines.case import Answer, Baseline, Case
from ddx_evals.baselines.grep import grep
from ddx_evals.baselines.guesses import majority, null, rank0
from ddx_evals.baselines.one_look import one_look
from ddx_evals.baselines.oracle import oracle
from ddx_evals.baselines.playbook import playbook
from ddx_evals.baselines.torchfrtrace import torchfrtrace
from ddx_evals.incidents import Incident

NAMES = ("oracle", "playbook", "one-look", "grep", "torchfrtrace", "majority", "rank0", "null")


def baselines(incidents: Sequence[Incident]) -> dict[str, Baseline]:
    """All baselines for these incidents by name, best expected first."""
    answering: tuple[Baseline, ...] = (oracle, playbook, one_look, grep, torchfrtrace, majority(incidents), rank0, null)
    return dict(zip(NAMES, answering, strict=True))


__all__ = ["NAMES", "Answer", "Baseline", "Case", "baselines"]
