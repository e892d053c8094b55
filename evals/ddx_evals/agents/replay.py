"""Serves an incident to an agent: the ordinary MCP server, restricted to one view of the material."""

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
    """Yield the server for the block; reports and calls are written to the directory `reports`.

    The material is in a separate place, so that no path, query or resource leads to the truth. Raises UsageError if the
    incident has no such view.
    """
    from ddx_evals.agents.server import build
    from ddx_server.serve.config import ServeConfig

    if view not in incident.views:
        raise UsageError(f"{incident.split}/{incident.id} has no view {view}", f"It has: {', '.join(incident.views)}.")
    with staged(incident, view) as material:
        config = ServeConfig.at([material.parent], incidents=reports, recorded=material)
        yield build(config, tools, reports / TRANSCRIPT)
