"""The MCP server of one arm, as a process: the ordinary server or a part of it, with a transcript.

python -m ddx_evals.agents.server --reports DIRECTORY [--recorded BUNDLE] [--tools ARM] [--http --token-file FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddx_evals.agents.arm import Tools
from ddx_evals.scoring.transcript import TRANSCRIPT, ToolCall, Transcript
from ddx_tools.model.errors import DdxError

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from ddx_server.serve.config import ServeConfig

_BARE = "Submit the diagnosis with report_diagnosis: that ends the investigation."


def build(config: ServeConfig, tools: Tools, transcript: Path | None = None) -> MCPServer:
    """Build the server of an arm. Without playbooks it has no `diagnose`, pages, skill or prompts.

    It leaves out the casebook's public cases, since the scored incident may be one of them.
    """
    from ddx_server.serve.app import build_server
    from ddx_tools.diagnosis.casebook import threads

    config = replace(config, not_similar=threads())
    server = build_server(config) if tools.has_playbooks else _without_playbooks(config, tools)
    if transcript is not None:
        server.middleware.append(_Recorder(transcript))
    return server


def _without_playbooks(config: ServeConfig, tools: Tools) -> MCPServer:
    from mcp.server.mcpserver import MCPServer

    from ddx_server.serve.app import SERVER_NAME
    from ddx_server.serve.investigations import Investigations
    from ddx_server.serve.probe_tools import probe_tool
    from ddx_server.serve.query_tool import query_tool
    from ddx_server.serve.report_tool import report_tool
    from ddx_server.serve.workspace import Workspace
    from ddx_tools.probes.registry import PROBES

    workspace = Workspace(config)
    offered = [report_tool(workspace)]
    if tools is Tools.PROBES:
        offered += [probe_tool(probe, workspace) for probe in PROBES]
        offered.append(query_tool(workspace, Investigations(workspace)))
    return MCPServer(SERVER_NAME, instructions=_BARE, tools=offered, log_level="WARNING")


class _Recorder:
    """Records every tool call and its result as they pass through the server."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls: list[ToolCall] = []

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method == "tools/call" and isinstance(ctx.params, Mapping):
            arguments = ctx.params.get("arguments")
            self._calls.append(
                ToolCall(
                    tool=str(ctx.params.get("name")),
                    arguments=arguments if isinstance(arguments, dict) else {},
                    output=_read_by_client(result),
                )
            )
            self._file.write_text(Transcript(calls=self._calls).model_dump_json(indent=1), encoding="utf-8")
        return result


def _read_by_client(result: object) -> str:
    """The text of a result, which includes the structured content as JSON."""
    content = result.get("content", []) if isinstance(result, Mapping) else getattr(result, "content", [])
    parts = [part if isinstance(part, Mapping) else part.model_dump() for part in content]
    return "\n".join(str(part["text"]) for part in parts if "text" in part)


def main() -> None:
    """Serve until the client disconnects (standard input and output) or a signal arrives (HTTP)."""
    from ddx_server.serve.config import ServeConfig
    from ddx_server.serve.http_transport import HttpOptions, serve_http
    from ddx_server.serve.stdio_transport import serve_stdio

    parser = argparse.ArgumentParser(prog="python -m ddx_evals.agents.server")
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--tools", type=Tools, default=Tools.SERVER)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--token-file", type=Path)
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        config = ServeConfig.at([options.root], incidents=options.reports, recorded=options.recorded)
        server = build(config, options.tools, options.reports / TRANSCRIPT)
        if options.http:
            serve_http(server, HttpOptions("127.0.0.1", 0, options.token_file), say)
        else:
            serve_stdio(server, say)
    except DdxError as error:
        sys.exit(json.dumps({"error": error.message, "help": error.help}))


if __name__ == "__main__":
    main()
