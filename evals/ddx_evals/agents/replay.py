"""Serves an incident to an agent: the ordinary MCP server, over one view of the material and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddx_evals.agents.arm import Tools
from ddx_evals.incidents import Incident, View, staged
from ddx_evals.scoring import TRANSCRIPT
from ddx_tools.model.errors import UsageError

if TYPE_CHECKING:
    from mcp.server import MCPServer


@contextmanager
def served(incident: Incident, view: View, reports: Path, tools: Tools = Tools.SERVER) -> Iterator[MCPServer]:
    """The server, for as long as the block lasts; what is reported and called goes to the directory `reports`.

    The material lies in a place of its own, so that no path, query or resource leads to the truth.
    Raises UsageError if the incident has no such view.
    """
    from ddx_evals.agents.server import build
    from ddx_server.serve.config import ServeConfig

    if view not in incident.views:
        raise UsageError(f"{incident.split}/{incident.id} has no view {view}", f"It has: {', '.join(incident.views)}.")
    with staged(incident, view) as material:
        config = ServeConfig.at([material.parent], incidents=reports, recorded=material)
        yield build(config, tools, reports / TRANSCRIPT)
