"""The MCP server: tools, resources and prompts over one workspace, the same for every transport."""

from __future__ import annotations

from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool

from ddx_server.serve.add_finding_tool import add_finding_tool
from ddx_server.serve.config import ServeConfig
from ddx_server.serve.diagnose_tool import diagnose_tool
from ddx_server.serve.incident_tools import capture_tool, open_tool
from ddx_server.serve.instructions import INSTRUCTIONS
from ddx_server.serve.investigations import Investigations
from ddx_server.serve.playbook_tool import playbook_tool
from ddx_server.serve.probe_tools import probe_tool
from ddx_server.serve.prompts import register_prompts
from ddx_server.serve.query_tool import query_tool
from ddx_server.serve.redaction import without_secrets
from ddx_server.serve.report_tool import report_tool
from ddx_server.serve.resources import register_resources
from ddx_server.serve.show_tool import show_tool
from ddx_server.serve.similar_tool import similar_tool
from ddx_server.serve.skills_extension import SkillsExtension
from ddx_server.serve.workspace import Workspace
from ddx_tools import __version__
from ddx_tools.probes.registry import PROBES

SERVER_NAME = "debug-distributed"


def build_server(config: ServeConfig) -> MCPServer:
    """Build the server for a configuration. A tool's imports happen when it is first called."""
    workspace = Workspace(config)
    server = MCPServer(
        SERVER_NAME,
        title="debug-distributed (ddx)",
        instructions=INSTRUCTIONS,
        version=__version__,
        tools=_tools(workspace),
        extensions=[SkillsExtension()],
        middleware=[without_secrets],
        log_level="WARNING",
    )
    register_resources(server, workspace)
    register_prompts(server)
    return server


def listed_tools() -> list[Tool]:
    """All tools in the order in which clients list them, for documentation only."""
    return _tools(Workspace(ServeConfig(roots=(), incidents=Path())))


def _tools(workspace: Workspace) -> list[Tool]:
    investigations = Investigations(workspace)
    return [
        diagnose_tool(workspace, investigations),
        *(probe_tool(probe, workspace) for probe in PROBES),
        capture_tool(workspace, investigations),
        open_tool(workspace, investigations),
        query_tool(workspace, investigations),
        show_tool(workspace),
        add_finding_tool(workspace),
        similar_tool(workspace, investigations),
        playbook_tool(),
        report_tool(workspace),
    ]
