"""Data that people read at the top of the repository and that the wheel carries beside this package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent.parent


def _data_dir(in_wheel: str, in_checkout: str) -> Path:
    installed = _PACKAGE / "_data" / in_wheel
    return installed if installed.is_dir() else _CHECKOUT / in_checkout


def playbooks_dir() -> Path:
    """Where the playbooks are: `symptoms/*.md`, `causes/*.md`."""
    return _data_dir("playbooks", "playbooks")


def skill_dir() -> Path:
    """Where the agent skill is."""
    return _data_dir("skill", "skill")


def lab_dir() -> Path:
    """Where the lab's training jobs and scenarios are."""
    return _data_dir("lab", "evals/lab")


def incidents_dir() -> Path:
    """Where recorded and transcribed incidents are, a directory a split."""
    return _data_dir("incidents", "evals/incidents")


def payloads_dir() -> Path:
    """Files that run in the user's interpreter."""
    return _PACKAGE / "payloads"
