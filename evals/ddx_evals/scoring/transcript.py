"""What somebody did on the way to an answer. It is reported beside the score, never inside."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TRANSCRIPT = "transcript.json"
"""The name of the file that holds a transcript, beside what was reported."""


class ToolCall(BaseModel):
    """One call of a probe or of another tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    output: str = ""
    """What came back, as the caller read it."""
    quotable: bool = True
    """Whether it counts as evidence: what a shell printed may be the caller's own words."""


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


def quotable_texts(transcript: Transcript) -> Iterator[str]:
    """What tools said and an answer may quote: their text, and, where that is JSON, every text in it as it reads.

    What stands in the call itself (a literal of a query, a note, the diagnosis that was submitted) was said by the
    caller, and is left out.
    """
    for call in transcript.calls:
        if not call.quotable or not call.output:
            continue
        asked = " ".join(_strings(call.arguments))
        yield from (text for text in _as_read(call.output) if text not in asked)


def _as_read(text: str) -> Iterator[str]:
    """The strings of a JSON text, and of JSON that is one of them (a content block); any other text is itself."""
    try:
        told = json.loads(text) if text[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        told = None
    if told is None:
        yield text
        return
    for inner in _strings(told):
        yield from _as_read(inner)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif value is not None:
        yield str(value)


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
