"""Jobs of the lab that are built on frameworks say what they need, before anything is started."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddx_evals.lab import LabError, LabRun, load_scenarios
from ddx_tools.knowledge.resources import lab_dir

SCENARIOS = load_scenarios()
LAB_HAS = {"numpy", "torch"}
"""What `debug-distributed[lab]` installs."""


def imported(job: Path) -> Iterator[str]:
    """The modules that the files of a job import, without the standard library's and its own."""
    own = {file.stem for file in job.glob("*.py")}
    for file in job.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            yield from {name.split(".")[0] for name in names} - own - sys.stdlib_module_names


def test_scenarios_name_the_modules_that_their_jobs_import() -> None:
    needed = {job: set(imported(job)) - LAB_HAS for job in (lab_dir() / "jobs").iterdir() if job.is_dir()}
    unnamed = {
        scenario.id: missing
        for scenario in SCENARIOS.values()
        if (missing := needed[lab_dir() / "jobs" / scenario.job] - set(scenario.needs_modules))
    }
    assert unnamed == {}


def test_a_missing_module_is_named_and_how_to_get_it() -> None:
    scenario = SCENARIOS["healthy"].model_copy(update={"needs_modules": ("json", "trainer_of_nobody")})
    with LabRun(scenario, 4) as run:
        with pytest.raises(LabError, match=r"needs the Python modules trainer_of_nobody; .*\[lab-frameworks\]"):
            run.start()
        assert not list(run.workdir.iterdir())
