"""Talk to a server in the same process as its clients do: through the SDK's client."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp.client import Client
from mcp.server import MCPServer
from mcp_types import CallToolResult, TextContent

from ddx_server.serve.app import build_server
from ddx_server.serve.budget import LIMIT_BYTES
from ddx_server.serve.config import ServeConfig
from ddx_server.serve.diagnosis_payload import CASE_BYTES

T = TypeVar("T")
REPOSITORY = Path(__file__).parents[2]
INCIDENTS = REPOSITORY / "evals/incidents/public"
MISMATCH = INCIDENTS / "16-seq-3738254-reduce-vs-allgather/artifacts"


def in_session(config: ServeConfig, talk: Callable[[Client], Awaitable[T]], **client: Any) -> T:
    """What comes out of one session; `client` are options of the SDK's client."""

    async def session() -> T:
        async with Client(_server(config), **client) as connected:
            return await talk(connected)

    return anyio.run(session)


@cache
def _server(config: ServeConfig) -> MCPServer:
    """Sessions of one configuration share a server, as those of HTTP do."""
    return build_server(config)


def call(config: ServeConfig, tool: str, arguments: dict[str, Any] | None = None, **client: Any) -> CallToolResult:
    """One tool call in a session of its own."""

    async def talk(connected: Client) -> CallToolResult:
        return await connected.call_tool(tool, arguments or {})

    return in_session(config, talk, **client)


def content(reply: CallToolResult) -> dict[str, Any]:
    """The structured content of a call that went well: within the budget, and the same as its text."""
    assert not reply.is_error, reply.content
    assert reply.structured_content is not None
    compact = json.dumps(reply.structured_content, ensure_ascii=False, separators=(",", ":"))
    assert len(compact.encode()) <= (CASE_BYTES if "case" in reply.structured_content else LIMIT_BYTES)
    (text,) = reply.content
    assert isinstance(text, TextContent)
    assert json.loads(text.text) == reply.structured_content
    told: dict[str, Any] = reply.structured_content
    return told


def ask(config: ServeConfig, tool: str, arguments: dict[str, Any] | None = None, **client: Any) -> dict[str, Any]:
    """What a tool answers."""
    return content(call(config, tool, arguments, **client))


def refusal(config: ServeConfig, tool: str, arguments: dict[str, Any] | None = None, **client: Any) -> str:
    """The words in which a tool refuses."""
    reply = call(config, tool, arguments, **client)
    assert reply.is_error, reply.structured_content
    (text,) = reply.content
    assert isinstance(text, TextContent)
    assert "Traceback" not in text.text
    return text.text
