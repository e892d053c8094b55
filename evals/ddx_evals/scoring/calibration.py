"""How well an answer knows what it knows."""

from __future__ import annotations

from ddx_tools.model.diagnosis import Diagnosis, Level, Verdict


def confidence(answer: Diagnosis) -> float | None:
    """The probability that an answer gives to what it says first; None if it says nothing.

    "Healthy" without causes is said with certainty.
    """
    if answer.causes:
        return answer.causes[0].probability
    return 1.0 if answer.verdict is Verdict.HEALTHY else None


def brier(answer: Diagnosis, *, right: bool) -> float | None:
    """The squared distance between the confidence and the truth; 0 is best, 1 worst, None without a claim."""
    claimed = confidence(answer)
    return None if claimed is None else (claimed - float(right)) ** 2


def is_established(answer: Diagnosis) -> bool:
    """Whether it calls its first cause proven. A diagnosis at even odds is a guess, whatever it is called."""
    return bool(answer.causes) and answer.causes[0].level is Level.ESTABLISHED
