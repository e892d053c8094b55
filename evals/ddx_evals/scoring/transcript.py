"""What somebody did on the way to an answer. It is reported beside the score, never inside."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ToolCall(BaseModel):
    """One call of a probe or of another tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    output: str = ""
    """What came back, as the caller read it."""


class Transcript(BaseModel):
    """The calls in their order, and what they cost as far as somebody counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: list[ToolCall] = Field(default_factory=list)
    tokens: int | None = None
    seconds: float | None = None
    cost_usd: float | None = None


class Efficiency(BaseModel):
    """What an answer took."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: int
    repeated: int
    """Calls with the same arguments as an earlier one."""
    over_minimal: int
    """Calls beyond the number of probes that settle it; 0 where the truth names none."""
    guessed: bool
    """Answered without a look."""
    output_bytes: int
    tokens: int | None = None
    seconds: float | None = None
    cost_usd: float | None = None


def efficiency(transcript: Transcript, minimal_probes: Collection[str]) -> Efficiency:
    """Count a transcript."""
    asked = [(call.tool, json.dumps(call.arguments, sort_keys=True)) for call in transcript.calls]
    return Efficiency(
        calls=len(asked),
        repeated=len(asked) - len(set(asked)),
        over_minimal=max(0, len(asked) - len(minimal_probes)) if minimal_probes else 0,
        guessed=not asked,
        output_bytes=sum(len(call.output.encode()) for call in transcript.calls),
        tokens=transcript.tokens,
        seconds=transcript.seconds,
        cost_usd=transcript.cost_usd,
    )
