"""Marks text that may come from a job: `untrusted_` before the field name, in every tool's reply."""

from __future__ import annotations

from typing import Any

MARK = "untrusted_"
_OF_A_DIAGNOSIS = frozenset({"claim", "quote", "says", "supports", "against", "lines", "what", "text"})
"""Nested fields of a diagnosis whose text quotes the job."""
_OF_A_PLACE = _OF_A_DIAGNOSIS | {"source"}
"""A place in a program has the line itself as its `source`; elsewhere `source` is an address of evidence."""
_OF_AN_ASPECT = frozenset({"suspect", "peers"})
"""By what ranks differ: `what` names it in our words, the two values are the job's."""


def marked(value: Any) -> Any:
    """Put `untrusted_` before the names of nested fields that quote the job, in dicts and lists.

    `value` is a part of a diagnosis as JSON values; the result is a copy.
    """
    if isinstance(value, list):
        return [marked(item) for item in value]
    if isinstance(value, dict):
        if value.keys() >= {"what", *_OF_AN_ASPECT}:
            quoting = _OF_AN_ASPECT
        else:
            quoting = _OF_A_PLACE if "file" in value else _OF_A_DIAGNOSIS
        return {f"{MARK}{name}" if name in quoting else name: marked(item) for name, item in value.items()}
    return value


def unmarked(value: Any) -> Any:
    """Remove the marks: an agent may send fields back the way it received them."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {str(name).removeprefix(MARK): unmarked(item) for name, item in value.items()}
    return value
