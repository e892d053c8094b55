"""Incidents for tests, and the commands of `ddx evals` as functions."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from ddx_evals.commands import app
from ddx_evals.incidents import Incident, load_incident
from ddx_tools.knowledge.resources import incidents_dir


@cache
def recorded(scenario: str) -> Incident:
    """The shipped recording of a scenario."""
    (directory,) = [
        truth.parent
        for truth in (incidents_dir() / "dev").glob("*/truth.yaml")
        if f"command: ddx lab record {scenario} " in truth.read_text()
    ]
    return load_incident(directory)


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
