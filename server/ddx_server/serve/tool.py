"""One way to make a tool: strict arguments, short schemas, expected failures as help, unexpected ones as ours."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import ConfigDict, ValidationError

from ddx_server.serve.call import at_work
from ddx_server.serve.replies import ToolReply, refusal
from ddx_server.serve.schemas import arguments_schema, reply_schema
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.errors import DdxError, UsageError

_LOG = logging.getLogger(__name__)


class _Tool(Tool):
    """A tool that says in a sentence which of its arguments cannot be used."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """What the tool returns. Raises ToolError."""
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = UsageError(first_mistake(error.__cause__), f"It takes: {', '.join(self.parameters['properties'])}.")
            raise ToolError(f"Error executing tool {self.name}: {refusal(wrong)}") from error.__cause__


def make_tool(
    function: Callable[..., CallToolResult],
    name: str,
    description: str,
    reply: type[ToolReply],
    *,
    read_only: bool = True,
    open_world: bool = False,
) -> Tool:
    """A tool of a function whose result holds a `reply`; it runs in a worker thread."""
    tool = _Tool.from_function(
        _explaining(function, name),
        name=name,
        description=description,
        annotations=ToolAnnotations(
            read_only_hint=read_only,
            # What only reads destroys nothing, and need not say so.
            destructive_hint=None if read_only else False,
            open_world_hint=open_world,
        ),
    )
    metadata = tool.fn_metadata

    # A misspelt argument that is passed over looks like an answer to the question that was asked.
    class Arguments(metadata.arg_model):  # type: ignore[name-defined,misc]
        model_config = ConfigDict(extra="forbid")

    metadata.arg_model = Arguments
    metadata.output_model = reply
    metadata.output_schema = _schema_of(reply)
    tool.parameters = arguments_schema(tool.parameters)
    return tool


@functools.cache
def _schema_of(reply: type[ToolReply]) -> dict[str, Any]:
    """Made once for all probes: that is half of what starting the server costs."""
    return reply_schema(reply.model_json_schema(by_alias=True))


def sign(function: Callable[..., Any], parameters: Sequence[inspect.Parameter], returned: object) -> None:
    """Give a function that takes any keywords the signature by which the SDK calls it; its context comes first."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    signature = inspect.Signature([context, *parameters], return_annotation=returned)
    function.__signature__ = signature  # type: ignore[attr-defined]
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    function.__annotations__ = {**annotations, "return": returned}


def _explaining(function: Callable[..., CallToolResult], name: str) -> Callable[..., CallToolResult]:
    """The function with its failures in words that help; what nobody expected is told to the log alone."""

    @functools.wraps(function)
    def run(*args: Any, **given: Any) -> CallToolResult:
        try:
            with at_work():
                return function(*args, **given)
        except ToolError:
            raise
        except DdxError as error:
            raise ToolError(refusal(error)) from error
        except Exception as error:
            _LOG.exception("the tool %s failed", name)
            raise ToolError(
                f"an error of ddx ({type(error).__name__}), not of your job; the server's log says more. "
                "Go on with another tool."
            ) from error

    return run
