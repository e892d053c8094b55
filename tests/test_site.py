"""The manual as a site: it builds without a warning, every link and anchor in it leads somewhere, it loads nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from ddx_server.cli import app
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.model.diagnosis import Certainty, Level, SuspectEvent, Verdict

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs mkdocs-material (pip install -e '.[docs]')")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    return place


@pytest.mark.long
def test_it_holds_each_command_and_each_cause(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text("utf-8")
    group = typer.main.get_command(app)
    named = {name for name, one in getattr(group, "commands", {}).items() if not one.hidden}
    assert {name for name in named if f'id="ddx-{name}"' not in commands} == set()
    causes = (site / "reference/causes.html").read_text("utf-8")
    assert {cause for cause in load_playbooks().causes if f'id="{cause}"' not in causes} == set()


@pytest.mark.long
def test_it_lists_each_value_of_an_answers_words(site: Path) -> None:
    page = (site / "reference/diagnosis.html").read_text("utf-8")
    for words in (Verdict, Level, Certainty, SuspectEvent):
        part = page.partition(f'id="{words.__name__.lower()}"')[2].partition("<h2")[0]
        assert [value for value in words if f"<code>{value}</code>" not in part] == [], words


@pytest.mark.long
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']?https?:|<link[^>]+stylesheet[^>]+href=["']?https?:"""
    )
    assert [page.name for page in site.rglob("*.html") if loading.search(page.read_text("utf-8"))] == []


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed, pages - listed
