"""Reads training steps as printed by programs: `step 12/100 loss 0.53`, `{'iter': 12}`, `40%|…| 12/30 […]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STEP = re.compile(
    r"(?<![\w.])(?:global[_ ]?step|steps?|iter(?:ation)?s?)['\"]?(?: ?[:=#]| )? ?\[?"
    r"(\d{1,12})(?: ?/ ?(\d{1,12}))?(?![\w.]\d)",
    re.I,
)
_BAR = re.compile(r"%\|[^|]{0,200}\| *(\d{1,12})/(\d{1,12}) \[")
_LOSS = re.compile(
    r"(?<![\w.])loss['\"]?(?: ?[:=]| )? ?([-+]?(?:\d{1,20}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|nan|inf))(?!\w)", re.I
)


@dataclass(frozen=True)
class LoggedStep:
    """The training step in a line."""

    step: int
    total: int | None = None
    loss: float | None = None


def parse_progress(text: str) -> LoggedStep | None:
    """Return the training step in a line; None if there is none."""
    text = text[:2_000]
    if "%|" not in text and "step" not in (lower := text.lower()) and "iter" not in lower:
        return None
    found = _STEP.search(text) or _BAR.search(text)
    if not found:
        return None
    loss = _LOSS.search(text)
    return LoggedStep(int(found[1]), int(found[2]) if found[2] else None, float(loss[1]) if loss else None)
