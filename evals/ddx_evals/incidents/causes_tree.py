"""Which causes refine which: an answer that names a cause above the truth is right, only less specific."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ddx_tools.yaml_data import load_yaml


@cache
def _tree() -> Mapping[str, tuple[str, ...]]:
    told = load_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return MappingProxyType({node: tuple(children) for node, children in told.items()})


def causes_in_tree() -> frozenset[str]:
    """The ids of all causes that the tree holds."""
    return frozenset(_tree()).union(*_tree().values())


def above(causes: Iterable[str]) -> frozenset[str]:
    """All causes that these refine, directly or through others."""
    found: set[str] = set()
    todo = list(causes)
    while todo:
        child = todo.pop()
        new = {node for node, children in _tree().items() if child in children} - found
        found |= new
        todo += new
    return frozenset(found)
