"""Another run of the job beside the one that failed: whether it is well, and what is otherwise there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ddx_tools.investigation.baseline import BaselineDifference, baseline_differences, read_baseline
from ddx_tools.model.baseline import Baseline

_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class ComparedRun:
    """Another run, and what is otherwise in it."""

    run: Baseline
    differences: list[BaselineDifference]
    """`here` is the failed run, `there` this one."""
    left_out: int


def compared_run(place: Path, failed: Baseline, progress: Callable[[str], None]) -> ComparedRun:
    """A bundle, logs, records or the baseline of another run, beside the failed one. Raises UsageError."""
    run = read_baseline(place, progress)
    differences = iter(baseline_differences(failed, run))
    shown = list(islice(differences, _MOST_DIFFERENCES))
    return ComparedRun(run, shown, sum(1 for _ in differences))
