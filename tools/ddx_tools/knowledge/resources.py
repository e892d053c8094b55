"""Paths of data that is at the top of the repository, and next to this package in the wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent.parent


def _data_dir(in_wheel: str, in_checkout: str) -> Path:
    installed = _PACKAGE / "_data" / in_wheel
    return installed if installed.is_dir() else _CHECKOUT / in_checkout


def playbooks_dir() -> Path:
    """The directory of the playbooks: `symptoms/*.md`, `causes/*.md`."""
    return _data_dir("playbooks", "playbooks")


def skill_dir() -> Path:
    """The directory of the agent skill."""
    return _data_dir("skill", "skill")


def lab_dir() -> Path:
    """The directory of the lab's training jobs and scenarios."""
    return _data_dir("lab", "evals/lab")


def incidents_dir() -> Path:
    """The directory of recorded and transcribed incidents, with one subdirectory per split."""
    return _data_dir("incidents", "evals/incidents")


def payloads_dir() -> Path:
    """The directory of files that run in the user's interpreter."""
    return _PACKAGE / "payloads"
