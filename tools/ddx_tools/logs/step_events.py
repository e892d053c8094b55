"""What a row of printed progress says, and findings made of such rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddx_tools.logs.event import Event
from ddx_tools.model import Finding, Severity

_EVIDENCE_LIMIT = 8


def step_number(event: Event) -> int | None:
    """The step, or the batch where no step is printed."""
    step: int | None = event.details.get("step")
    return step if step is not None else event.details.get("batch")


def step_unit(event: Event) -> str:
    """Which of the two it is."""
    return "step" if event.details.get("step") is not None else "batch"


def step_position(event: Event) -> tuple[float, int]:
    """Epoch and number: what comes later is greater."""
    return event.details.get("epoch") or 0.0, step_number(event) or 0


def step_finding(
    code: str,
    severity: Severity,
    events: list[Event],
    summary: str,
    attributes: dict[str, Any],
    ranks: Iterable[int] | None = None,
) -> Finding:
    """A finding out of rows; of the ranks that these are of, if none are named."""
    told = {rank for event in events for rank in event.ranks} if ranks is None else set(ranks)
    facts = {**attributes, "basis": "log"}
    return Finding(
        code=code,
        severity=severity,
        ranks=sorted(told),
        hosts=sorted({event.row["host"] for event in events if event.row["host"]}),
        summary=summary[:600],
        evidence=[event.evidence for event in events[:_EVIDENCE_LIMIT]],
        attributes={name: value for name, value in facts.items() if value is not None},
    )
