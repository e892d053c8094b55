"""Hints to install more of ddx work where it is installed from a checkout: no index has the package."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib.metadata import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddx_tools.model import install_hint
from ddx_tools.model.install_hint import install_command

ROOT = Path(__file__).parents[2]


def test_the_command_names_the_checkout_and_this_python() -> None:
    *pip, what = shlex.split(install_command("agent"))
    checkout, _, extra = what.partition("[")
    assert pip[:4] == [sys.executable, "-m", "pip", "install"]
    assert (Path(checkout) / "pyproject.toml").is_file()
    assert extra.rstrip("]") in (metadata("debug-distributed").get_all("Provides-Extra") or [])


@pytest.mark.parametrize(
    ("origin", "what"),
    [
        ({"url": "https://x.org/d", "vcs_info": {"vcs": "git"}}, "debug-distributed[lab] @ git+https://x.org/d"),
        ({"url": "https://x.org/d.whl", "archive_info": {}}, "debug-distributed[lab] @ https://x.org/d.whl"),
        ({"url": "file:///no/such/place", "dir_info": {}}, ".[lab]"),
        (None, "debug-distributed[lab]"),
    ],
)
def test_it_is_installed_from_where_it_came(origin: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(read_text=lambda _: json.dumps(origin) if origin else None)
    monkeypatch.setattr(install_hint, "distribution", lambda _: told)
    assert what in shlex.split(install_command("lab"))


def test_no_text_tells_to_install_by_name_alone() -> None:
    by_name = re.compile(r"pip install ['\"]?debug-distributed\b")
    texts = [path for folder in ("tools", "server", "evals", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    assert len(texts) > 100
    assert not [path for path in [*texts, ROOT / "README.md"] if by_name.search(path.read_text(encoding="utf-8"))]
