"""Incidents for tests, and the commands of `ddx evals` as functions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from ddx_evals.commands import app
from ddx_evals.incidents import Incident, load_incident
from ddx_tools.resources import incidents_dir

RECORDED = sorted(
    path.parent for path in (incidents_dir() / "dev").glob("*/truth.yaml") if "kind: recorded" in path.read_text()
)


def recorded(scenario: str) -> Incident:
    """The shipped recording of a scenario."""
    found = [load_incident(directory) for directory in RECORDED]
    return next(each for each in found if each.truth.provenance and each.truth.provenance.scenario == scenario)


def copied(incident: Incident, target: Path, **changes: Any) -> Path:
    """A copy of an incident below `target`, with other values in its truth."""
    directory = target / incident.split / incident.id
    shutil.copytree(incident.directory, directory)
    told = yaml.safe_load((directory / "truth.yaml").read_text())
    (directory / "truth.yaml").write_text(yaml.safe_dump({**told, **changes}))
    return directory


def ddx_evals(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of `ddx evals …`."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return done.exit_code, done.output
