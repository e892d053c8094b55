"""The tool `similar_cases`: finds known cases like the present one."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field

from ddx_server.serve.budget import Payload, Rest
from ddx_server.serve.call import ServedCall
from ddx_server.serve.investigations import Investigations
from ddx_server.serve.replies import SimilarReply, result
from ddx_server.serve.target import Target
from ddx_server.serve.tool import make_tool
from ddx_server.serve.workspace import Workspace

_DESCRIPTION = (
    "Confirmed cases and known bugs of NCCL, torch or driver versions like this job or a message: cause, fix, link, "
    "differences. Not evidence."
)
_MOST = 4


def similar_tool(workspace: Workspace, investigations: Investigations) -> Tool:
    """Make the MCP tool `similar_cases`, which finds confirmed cases and known bugs like a job or message."""

    def similar_cases(
        ctx: Context[Any, Any],
        about: Annotated[str, Field(description="'ibv_modify_qp failed, NCCL 2.21.5'", max_length=4000)] = "",
        target: Target = [],  # noqa: B006 - read by pydantic alone
    ) -> CallToolResult:
        from ddx_tools.diagnosis.casebook import similar_to

        if about and not target and workspace.config.recorded is None:
            told = similar_to(about, _MOST)
        else:
            found = investigations.found(workspace.resolve(target), ServedCall(ctx, workspace))
            found.not_similar = workspace.config.not_similar
            told = found.similar(found.judge(), _MOST, about)
        payload = Payload(similar=Rest(len(told), "say more in about"))
        payload.extend("similar", [one.model_dump(exclude_defaults=True) for one in told])
        return result(payload.finished())

    return make_tool(similar_cases, "similar_cases", _DESCRIPTION, SimilarReply)
