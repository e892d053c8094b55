"""docs/seeds.md: every command, page and file that it names exists, and no row is left open."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from ddx_server.cli import app
from ddx_tools.diagnosis.playbook import load_playbooks

DOCS = Path(__file__).parents[1] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "seeds.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| described")
]
COMMAND = re.compile(r"`ddx ([a-z-]+)((?: --[a-z-]+)*)`")
PAGE = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`")
LINK = re.compile(r"\]\(([^)]+)\)")
CAPABILITIES = 89


def test_every_row_is_covered_or_says_that_it_is_not() -> None:
    open_rows = [
        row for row in ROWS if len(row) != 3 or not (re.search(r"`|\]\(", row[1]) or row[1].startswith("not covered"))
    ]
    assert not open_rows
    assert len(ROWS) == CAPABILITIES


def test_every_command_and_option_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for cell in (cell for row in ROWS for cell in row):
        for name, options in COMMAND.findall(cell):
            known = {option for parameter in commands[name].params for option in parameter.opts}
            assert set(options.split()) <= known, cell


def test_every_page_exists() -> None:
    playbooks = load_playbooks()
    known = {*playbooks.symptoms, *playbooks.causes, "healthy-loud-fsdp"}
    assert {page for row in ROWS for page in PAGE.findall(row[1])} <= known


def test_every_file_exists() -> None:
    assert {link for row in ROWS for cell in row for link in LINK.findall(cell) if not (DOCS / link).exists()} == set()
