"""A mesh on a terminal: the grid, the rank that was asked about, and cuts that are said."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ddx_server.cli import app
from ddx_server.render.result import render_result
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.probes.mesh.probe import PROBE


def drawn(width: int = 160, *, colour: bool = False, **args: Any) -> str:
    """What a terminal of that width shows."""
    result, _ = run_probe(Step(PROBE, {"target": [], **args}))
    out = StringIO()
    render_result(
        result, Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    )
    return out.getvalue()


def lines(text: str, start: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith(start)]


def test_a_mesh_is_drawn_as_the_grid_it_is() -> None:
    text = drawn(dims="pp=2,dp=2,tp=4", gpus_per_host=4)
    assert lines(text, "pp 0") == ["pp 0, dp 0 0 0 1 2 3", "pp 0, dp 1 1 4 5 6 7"]
    assert lines(text, "at ") == ["at host tp"]


def test_the_rank_that_was_asked_about_stands_out_and_no_other() -> None:
    marked = r"\x1b\[1;7m *(\d+) *\x1b\[0m"
    assert re.findall(marked, drawn(colour=True, dims="dp=2,tp=4", rank=6)) == ["6"]
    assert re.findall(marked, drawn(colour=True, dims="dp=2,tp=4")) == []


@pytest.mark.parametrize("width", [24, 40, 80, 160])
def test_a_narrow_terminal_gets_fewer_ranks_and_is_told_how_many_are_left(width: int) -> None:
    text = drawn(width=width, dims="dp=2,tp=16")
    (line,) = lines(text, "dp 0")
    ranks = re.fullmatch(r"dp 0 ([\d ]+?)(?: … (\d+) more)?", line)
    assert ranks, line
    assert len(ranks[1].split()) + int(ranks[2] or 0) == 16
    assert all(len(row) <= width for row in text.splitlines())


def test_a_large_world_is_cut_and_the_rest_is_named() -> None:
    text = drawn(dims="pp=8,dp=64,tp=8", rank=517)
    assert len(lines(text, "pp ")) == PROBE.most_rows
    assert lines(text, "pp ")[0].startswith("pp 1, dp 0 512 513")
    assert f"{PROBE.most_rows} of 512 rows shown; --rank N" in text


def test_a_wrong_world_ends_with_its_arithmetic_and_without_a_traceback() -> None:
    outcome = CliRunner().invoke(app, ["mesh", "--dims", "dp=2,tp=8", "--world-size", "48"])
    assert outcome.exit_code == 1
    assert "dp 2 × tp 8 = 16, but the world size is 48" in outcome.output
    assert "Traceback" not in outcome.output
