"""The tree of causes: an answer that names a cause above the truth is right, only less specific."""

from __future__ import annotations

from collections.abc import Iterable

from ddx_tools.diagnosis.playbook import load_playbooks


def above(causes: Iterable[str]) -> frozenset[str]:
    """All causes that these causes refine, directly or indirectly."""
    return frozenset[str]().union(*(load_playbooks().above(cause) for cause in causes))
