"""Words by which a printed line is recognised as part of an evaluation."""

from __future__ import annotations

import re

_EVALUATION = re.compile(
    r"(?<![a-z])(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing)(?![a-z])", re.I
)


def evaluates(shape: str) -> bool:
    """Whether a line of this shape reports an evaluation step."""
    return bool(_EVALUATION.search(shape))
