"""Makes tools: strict arguments, short schemas; expected failures become help, unexpected ones are reported as bugs."""

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
    """A tool that reports an unusable argument in one sentence."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Run the tool and return its result. Raises ToolError."""
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
    """Make a tool from a function that returns a `reply`; it runs in a worker thread."""
    tool = _Tool.from_function(
        _explaining(function, name),
        name=name,
        description=description,
        annotations=ToolAnnotations(
            read_only_hint=read_only,
            # A read-only tool destroys nothing and need not say so.
            destructive_hint=None if read_only else False,
            open_world_hint=open_world,
        ),
    )
    metadata = tool.fn_metadata

    # If a misspelt argument were ignored, the reply would look like the answer to the question asked.
    class Arguments(metadata.arg_model):  # type: ignore[name-defined,misc]
        model_config = ConfigDict(extra="forbid")

    metadata.arg_model = Arguments
    metadata.output_model = reply
    metadata.output_schema = _schema_of(reply)
    tool.parameters = arguments_schema(tool.parameters)
    return tool


@functools.cache
def _schema_of(reply: type[ToolReply]) -> dict[str, Any]:
    """The reply's schema, made once for all probes: this is half the cost of starting the server."""
    return reply_schema(reply.model_json_schema(by_alias=True))


def sign(function: Callable[..., Any], parameters: Sequence[inspect.Parameter], returned: object) -> None:
    """Set the signature, context first, by which the SDK calls a function of arbitrary keywords."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    signature = inspect.Signature([context, *parameters], return_annotation=returned)
    function.__signature__ = signature  # type: ignore[attr-defined]
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    function.__annotations__ = {**annotations, "return": returned}


def _explaining(function: Callable[..., CallToolResult], name: str) -> Callable[..., CallToolResult]:
    """Wrap a function so that expected failures become helpful messages; unexpected ones go to the log."""

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
                f"a bug in ddx ({type(error).__name__}), not in your job; the server's log says more. "
                "Continue with another tool."
            ) from error

    return run
