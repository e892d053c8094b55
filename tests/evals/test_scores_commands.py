"""`ddx evals scores`: every measurement is a subcommand, and all print through one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_incidents import ddx_evals
from rich.console import Console

from ddx_evals.terminal.tables import ScoreTable, markdown, show
from ddx_tools.model.errors import UsageError

SUBCOMMANDS = (
    "causes",
    "suspects",
    "sufficiency",
    "invariance",
    "left-out",
    "records",
    "degradation",
    "hardness",
    "messages",
    "gate",
)
PORT = "public/21-bind-29500-second-job"
TABLE = ScoreTable(["kind", "right", "bar"], [["healthy", "3", "[red]#"], ["rank_dead", "12", "."]], "of 15", 1, 1)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_says_in_its_help_how_to_call_it(name: str) -> None:
    code, shown = ddx_evals("scores", name, "--help")
    assert code == 0
    assert f"ddx evals scores {name} " in " ".join(shown.split()).partition("╭")[0].partition("[OPTIONS]")[2]


def test_the_list_of_subcommands_is_whole() -> None:
    _, shown = ddx_evals("scores", "--help")
    assert [name for name in SUBCOMMANDS if f"│ {name} " not in shown] == []


def test_a_table_is_printed_as_it_is_whatever_its_cells_say() -> None:
    out = Console(width=60, color_system=None)
    with out.capture() as printed:
        show(TABLE, out)
    lines = [line.split() for line in printed.get().splitlines() if line.strip()]
    assert lines[0] == ["of", "15"]
    assert lines[-2:] == [["healthy", "3", "[red]#"], ["rank_dead", "12", "."]]


def test_a_table_is_markdown_with_its_figures_on_the_right() -> None:
    assert markdown(TABLE).splitlines() == [
        "### of 15",
        "",
        "| kind | right | bar |",
        "|---|---:|---|",
        "| healthy | 3 | [red]# |",
        "| rank_dead | 12 | . |",
    ]


def test_simulated_jobs_are_counted_by_kind() -> None:
    chosen = ("--jobs", "1", "--kind", "rank_stalled", "--largest", "8", "--processes", "1")
    code, shown = ddx_evals("scores", "records", *chosen)
    assert code == 0
    assert "right 100.0%" in shown
    _, shown = ddx_evals("scores", "records", *chosen, "--json")
    assert json.loads(shown)["all"]["right"] == json.loads(shown)["rank_stalled"]["jobs"] == 1


def test_an_unknown_kind_of_fault_is_refused() -> None:
    with pytest.raises(UsageError, match="no kind of fault 'nosuch'"):
        ddx_evals("scores", "records", "--kind", "nosuch")


def test_an_unknown_view_is_refused() -> None:
    with pytest.raises(UsageError, match="no view 'nosuch'"):
        ddx_evals("scores", "suspects", PORT, "--view", "nosuch")


def test_hardness_says_by_which_rule_and_is_kept_under_its_old_name(tmp_path: Path) -> None:
    file = tmp_path / "hardness.md"
    code, shown = ddx_evals("scores", "hardness", PORT, "--json", "--markdown", file)
    assert code == 0
    (told,) = json.loads(shown)
    assert told["incident"] == PORT and told["tag"] == "easy" and "grep" in told["measured_by"]
    assert file.read_text().splitlines()[-1] == f"| {PORT} | easy | {told['measured_by']} |"
    assert ddx_evals("hardness", PORT, "--json") == (0, shown)


def test_strings_of_a_release_are_counted(tmp_path: Path) -> None:
    (tmp_path / "init.cc").write_text('void f() {\n  WARN("Nobody has ever written these words %d", 3);\n}\n')
    code, shown = ddx_evals("scores", "messages", "nccl", "0.0", tmp_path, "--unknown", "--json")
    assert code == 0
    told = json.loads(shown)
    assert (told["recognised"], told["strings"]) == (0, 1)
    assert told["unknown"][0]["not recognised"] == "Nobody has ever written these words {}"


def test_the_gate_refuses_to_accept_what_it_did_not_judge() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        ddx_evals("scores", "gate", PORT, "--first", "--accept")
