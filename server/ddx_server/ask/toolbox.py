"""The tools of an MCP server, in the form that the model's API expects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anthropic.types import ToolParam
    from mcp.client import Client
    from mcp_types import CallToolResult, Tool

# Our own server's replies are far smaller; those of another version might not be.
_RESULT_CHARS = 20_000


@dataclass(frozen=True)
class ToolAnswer:
    """A tool's answer: text for the model, and its structured content, if any."""

    text: str
    is_error: bool = False
    data: Any = None


@dataclass(frozen=True)
class Toolbox:
    """The tools of a connected MCP server."""

    client: Client
    tools: dict[str, Tool]

    @classmethod
    async def of(cls, client: Client) -> Toolbox:
        """List the server's tools and return a toolbox of all of them."""
        tools: dict[str, Tool] = {}
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if not cursor:
                return cls(client, tools)

    def for_the_model(self) -> list[ToolParam]:
        """The tools as the API's parameters: name, description, arguments. The last one carries the cache marker."""
        listed: list[ToolParam] = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in self.tools.values()
        ]
        if listed:
            listed[-1]["cache_control"] = {"type": "ephemeral"}
        return listed

    def only_looks(self, name: str) -> bool:
        """Whether the server declares that a tool changes nothing; False if it does not say."""
        annotations = self.tools[name].annotations
        return bool(annotations and annotations.read_only_hint)

    async def call(self, name: str, arguments: object) -> ToolAnswer:
        """Call a tool and return its answer. An error is returned as an answer too, so that the model can correct the
        call."""
        from mcp.shared.exceptions import MCPError

        if name not in self.tools:
            return ToolAnswer(f"There is no tool {name}. Available: {', '.join(self.tools)}.", is_error=True)
        if not isinstance(arguments, dict):
            return ToolAnswer(f"The arguments of {name} must be one JSON object.", is_error=True)
        try:
            return _answer(await self.client.call_tool(name, arguments))
        except (
            MCPError,
            RuntimeError,
            ValueError,
        ) as error:  # the last two: the result breaks its schema, or the protocol
            return ToolAnswer(f"{name} failed: {error}", is_error=True)


def _answer(result: CallToolResult) -> ToolAnswer:
    if result.structured_content is not None and not result.is_error:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    else:
        text = "\n".join(block.text for block in result.content if block.type == "text")
    if len(text) > _RESULT_CHARS:
        text = f"{text[:_RESULT_CHARS]}… (cut here: {_RESULT_CHARS} of {len(text)} characters; ask for less)"
    return ToolAnswer(text, result.is_error, result.structured_content)
