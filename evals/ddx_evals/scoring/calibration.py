"""Measures how well an answer's confidence matches its correctness."""

from __future__ import annotations

from ddx_tools.model.diagnosis import Diagnosis, Level, Verdict


def confidence(answer: Diagnosis) -> float | None:
    """The probability that an answer gives to its first claim; None if it makes no claim.

    "Healthy" without causes counts as certain.
    """
    if answer.causes:
        return answer.causes[0].probability
    return 1.0 if answer.verdict is Verdict.HEALTHY else None


def brier(answer: Diagnosis, *, right: bool) -> float | None:
    """The squared distance between the confidence and the truth; 0 is best, 1 worst, None without a claim."""
    claimed = confidence(answer)
    return None if claimed is None else (claimed - float(right)) ** 2


def is_established(answer: Diagnosis) -> bool:
    """Whether an answer calls its first cause established. A diagnosis at even odds is a guess, whatever its label."""
    return bool(answer.causes) and answer.causes[0].level is Level.ESTABLISHED
