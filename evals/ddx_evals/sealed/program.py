"""`ddx` for a sealed place: packages, playbooks and skill, without lab and evals, whose files reveal causes."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from functools import cache
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import yaml

from ddx_tools.diagnosis.casebook import FILE as CASEBOOK
from ddx_tools.diagnosis.casebook import casebook
from ddx_tools.knowledge.resources import playbooks_dir, skill_dir

INSIDE = "/opt/ddx"
_DEPENDENCIES = f"{INSIDE}/dependencies"
_OWN = ("ddx_tools", "ddx_server", "ddx_evals")
_LAUNCHER = """\
#!{python} -I
import sys

sys.path[1:1] = [{packages!r}, {dependencies!r}]
from ddx_server.cli import main

main()
"""


def program(directory: Path) -> dict[str, Path]:
    """Copy `ddx` to `directory` and return the files that a place must show, with `/opt/ddx/bin` on PATH.

    It copies the installation, since an editable install is the whole checkout. Its casebook has no threads, because a
    scored incident may be one of them.
    """
    packages = directory / "packages"
    for name, data in (("ddx_tools", "_data"), ("ddx_server", "")):
        ignored = shutil.ignore_patterns("__pycache__", *([data] if data else []))
        shutil.copytree(_package(name), packages / name, ignore=ignored)
    told = packages / "ddx_tools/knowledge" / CASEBOOK
    told.write_text(yaml.safe_dump([case.model_dump() for case in casebook() if case.affects]), encoding="utf-8")
    shutil.copytree(playbooks_dir(), packages / "ddx_tools/_data/playbooks")
    shutil.copytree(skill_dir(), packages / "ddx_tools/_data/skill")
    launcher = directory / "bin/ddx"
    launcher.parent.mkdir()
    python = Path(sys.executable).resolve()
    launcher.write_text(
        _LAUNCHER.format(python=python, packages=f"{INSIDE}/program/packages", dependencies=_DEPENDENCIES)
    )
    launcher.chmod(0o755)
    return {f"{INSIDE}/program": directory, _DEPENDENCIES: Path(sysconfig.get_path("purelib"))}


PATH = f"{INSIDE}/program/bin"
"""The directory of `ddx` inside the place."""


@cache
def own_packages() -> tuple[Path, ...]:
    """Our directories with more than an agent may see, wherever they are installed."""
    metadata = Path(str(distribution("debug-distributed").locate_file("")))
    installed = [Path(path).resolve() for path in metadata.glob("debug_distributed-*.dist-info")]
    return (*(_package(name) for name in _OWN if find_spec(name)), *installed)


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent
