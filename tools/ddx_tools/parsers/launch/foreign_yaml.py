"""Reads a user's YAML safely: bounded, and rejected if building it would explode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOST_CHARS = 256_000
_MOST_DEPTH = 60
_MOST_MERGED = 12
"""The maximum number of aliases in a text with merge keys: twelve multiply a mapping by at most 81 (four merges of
three)."""


def load_foreign_yaml(text: str) -> Any:
    """Return the plain data of the only document in a text; None for anything else, and for rejected text."""
    documents = load_foreign_documents(text)
    return documents[0] if len(documents) == 1 else None


def load_foreign_documents(text: str) -> list[Any]:
    """Return the plain data of each document; empty for text that is not YAML or is rejected.

    Rejected are deep nesting (libyaml builds nodes recursively, and a few thousand brackets overflow its stack) and
    many aliases together with merge keys (`<<`), which can double a mapping with every line. Without merge keys, an
    alias only shares its target.
    """
    if len(text) > _MOST_CHARS:
        return []
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(yaml.load_all(text, Loader=loader)) if _is_harmless(yaml.parse(text, Loader=loader)) else []
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError, KeyError):
        # PyYAML's constructors let some Python errors through: unhashable keys, invalid dates.
        return []


def _is_harmless(events: Iterable[Any]) -> bool:
    import yaml

    depth = aliases = merges = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        elif isinstance(event, yaml.ScalarEvent) and event.value == "<<":
            merges += 1
        if depth > _MOST_DEPTH or (merges and aliases > _MOST_MERGED):
            return False
    return True
