"""The mark of text that may come out of a job: `untrusted_` before the name of its field, in every tool's reply."""

from __future__ import annotations

from typing import Any

MARK = "untrusted_"
_OF_A_DIAGNOSIS = frozenset({"claim", "quote", "says", "supports", "against", "lines", "what", "text"})
"""Fields, inside those of a diagnosis, whose text quotes the job."""


def marked(value: Any) -> Any:
    """A part of a diagnosis with the fields marked that quote the job."""
    if isinstance(value, list):
        return [marked(item) for item in value]
    if isinstance(value, dict):
        return {f"{MARK}{name}" if name in _OF_A_DIAGNOSIS else name: marked(item) for name, item in value.items()}
    return value


def unmarked(value: Any) -> Any:
    """The same without marks: what an agent was told may come back as it got it."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {str(name).removeprefix(MARK): unmarked(item) for name, item in value.items()}
    return value
