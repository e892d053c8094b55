"""The tool calls made on the way to an answer. They are reported beside the score, never as part of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TRANSCRIPT = "transcript.json"
"""The name of the transcript file beside the reported diagnosis."""


class ToolCall(BaseModel):
    """One call of a probe or of another tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    output: str = ""
    """The output, as the caller read it."""
    quotable: bool = True
    """Whether it counts as evidence: shell output may be the caller's own words."""


class Transcript(BaseModel):
    """The calls in order, and their cost as far as it was counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: list[ToolCall] = Field(default_factory=list)
    tokens: int | None = None
    seconds: float | None = None
    cost_usd: float | None = None


class Efficiency(BaseModel):
    """The cost of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calls: int
    repeated: int
    """Calls with the same arguments as an earlier one."""
    over_minimal: int
    """Calls beyond the number of probes that settle it; 0 if the truth names none."""
    guessed: bool
    """Whether the answer came without any probe."""
    output_bytes: int
    tokens: int | None = None
    seconds: float | None = None
    cost_usd: float | None = None


def quotable_texts(transcript: Transcript) -> Iterator[str]:
    """Yield the tool output that an answer may quote: its text and, if that is JSON, every string in it.

    Text from the call itself (a literal in a query, a note, the submitted diagnosis) is the caller's and is left out.
    """
    for call in transcript.calls:
        if not call.quotable or not call.output:
            continue
        asked = " ".join(_strings(call.arguments))
        yield from (text for text in _as_read(call.output) if text not in asked)


def _as_read(text: str) -> Iterator[str]:
    """Yield the strings of a JSON text and of JSON nested in one (a content block), or any other text unchanged."""
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
    """Compute the cost of a transcript."""
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
