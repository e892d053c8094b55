"""Compares another run of the job with the failed one: whether it is healthy, and how it differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ddx_tools.investigation.baseline import BaselineDifference, baseline_differences, figures_of_both, read_baseline
from ddx_tools.model.baseline import Baseline

_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class ComparedRun:
    """Another run, and how it differs from the failed one."""

    run: Baseline
    differences: list[BaselineDifference]
    """In each, `here` is the failed run and `there` this one."""
    left_out: int
    compared: list[str]
    """What both runs report."""


def compared_run(place: Path, failed: Baseline, progress: Callable[[str], None]) -> ComparedRun:
    """Read a run (bundle, logs, records or baseline) and compare it with the failed one. Raises UsageError."""
    run = read_baseline(place, progress)
    differences = iter(baseline_differences(failed, run))
    shown = list(islice(differences, _MOST_DIFFERENCES))
    return ComparedRun(run, shown, sum(1 for _ in differences), figures_of_both(failed, run))
