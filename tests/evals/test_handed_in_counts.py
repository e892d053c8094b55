"""What an agent hands in: its quote is checked, the answer says what it changed, and it is counted and exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from serve_session import MISMATCH, ask, refusal
from typer.testing import CliRunner

from ddx_evals.commands import app
from ddx_evals.gate.handed_in import collected
from ddx_server.serve.config import ServeConfig
from ddx_tools.model.errors import UnreadableInput

LOG = next(file for file in sorted(MISMATCH.iterdir()) if file.suffix == ".log")
LINE = next(line for line in LOG.read_text().splitlines() if "SeqNum" in line)
FINDING = {"code": "collective.missing_ranks", "quote": LINE[:120], "source": f"material {LOG.name}:1", "ranks": [0]}


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    shutil.copytree(MISMATCH, tmp_path / "job")
    return ServeConfig.at([tmp_path], incidents=tmp_path / "kept", recorded=tmp_path / "job")


def test_what_is_handed_in_is_checked_weighed_and_counted(tmp_path: Path, config: ServeConfig) -> None:
    number = next(n for n, line in enumerate(LOG.read_text().splitlines(), 1) if line == LINE)
    good = {**FINDING, "source": f"material {LOG.name}:{number}"}
    assert "does not show" in refusal(config, "add_finding", {**good, "quote": "never printed by anybody"})
    assert "nearest" in refusal(config, "add_finding", {**good, "code": "collective.missing_rank"}).lower()
    assert not collected([tmp_path]), "what was refused was not handed in"
    told = ask(config, "add_finding", good)
    assert told["changed"][0].startswith("1 submitted; ")
    assert ask(config, "diagnose")["changed"], "it stays with the incident"
    ask(config, "add_finding", {**good, "quote": LINE[:60]})
    (one,) = collected([tmp_path])
    assert (one.code, one.times, one.incidents) == ("collective.missing_ranks", 2, 1)
    assert one.quotes == [LINE[:120], LINE[:60]]
    exported = CliRunner().invoke(app, ["handed-in", str(tmp_path), "--json"])
    assert json.loads(exported.stdout) == [one.model_dump()]


def test_a_file_that_holds_none_is_refused_where_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_text("[1]")
    assert collected([tmp_path]) == []
    with pytest.raises(UnreadableInput):
        collected([tmp_path / "findings.json"])
