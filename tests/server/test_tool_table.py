"""The manual lists the tools as the server does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddx_server.serve.app import listed_tools
from ddx_server.serve.tool_table import renewed, tool_table
from ddx_tools.probes.registry import PROBES

PAGE = Path(__file__).parents[2] / "docs/agents.md"


def test_the_manual_lists_the_tools_of_this_server() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "type: python -m ddx_server.serve.tool_table docs/agents.md"


def test_the_table_has_a_row_for_each_tool_and_says_which_ask() -> None:
    table = tool_table()
    assert table.startswith(f"{len(listed_tools())} tools:\n")
    rows = {
        tool.name: next(line for line in table.splitlines() if f"`{tool.name}` |" in line) for tool in listed_tools()
    }
    assert "asks first" in rows["preflight"] and "`nproc`" in rows["preflight"]
    assert "asks first" not in rows["stacks"]


def test_a_table_that_is_stale_is_noticed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page.replace("| `show` |", "| `shown` |")) == page
    with pytest.raises(ValueError, match="no lines"):
        renewed("# A page without a table\n")


def test_each_tool_is_in_the_table_of_what_an_agent_may_do() -> None:
    section = (
        PAGE.read_text(encoding="utf-8").partition("## Read-only: what an agent may do")[2].partition("There is no")[0]
    )
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    named = {name: does for tools, does, _ in rows for name in re.findall(r"`(\w+)`", tools)}
    assert named.keys() == {tool.name for tool in listed_tools()}
    asking = {name for tools, _, approval in rows if "asks first" in approval for name in re.findall(r"`(\w+)`", tools)}
    assert asking == {probe.id for probe in PROBES if not probe.read_only}
