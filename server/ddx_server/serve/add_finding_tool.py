"""The tool `add_finding`: a finding that an agent read in the material and ddx did not recognise."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field, ValidationError

from ddx_server.serve.call import ServedCall
from ddx_server.serve.replies import DiagnosisReply, result
from ddx_server.serve.target import Target
from ddx_server.serve.tool import make_tool
from ddx_server.serve.workspace import Workspace
from ddx_tools.model.errors import UsageError

_DESCRIPTION = (
    "Submit what you read in the material and the answer lacks: a registered finding code, the ranks, a verbatim "
    "quote, its source. ddx checks the quote and diagnoses again. It weighs less than what ddx saw and never decides "
    "alone."
)


def add_finding_tool(workspace: Workspace) -> Tool:
    """Make the MCP tool `add_finding`, by which an agent submits what it read and ddx did not recognise."""

    def add_finding(
        ctx: Context[Any, Any],
        code: Annotated[str, Field(description="rank.raised, collective.missing_ranks, … (read_playbook names them)")],
        quote: Annotated[str, Field(description="verbatim")],
        source: Annotated[str, Field(description="as `show` takes it: 'material rank3.log:41'")],
        ranks: list[int] = [],  # noqa: B006 - read by pydantic alone
        attributes: Annotated[dict[str, Any], Field(description="as the registry lists them")] = {},  # noqa: B006
        target: Target = [],  # noqa: B006
    ) -> CallToolResult:
        from ddx_server.serve.diagnosis_payload import told_payload
        from ddx_tools.diagnosis.submitted import HandedIn
        from ddx_tools.investigation.submission import with_checked
        from ddx_tools.knowledge.validation import first_mistake

        call, resolved = ServedCall(ctx, workspace), workspace.resolve(target)
        try:
            one = HandedIn(code=code, quote=quote, source=source, ranks=ranks, attributes=attributes)
        except ValidationError as error:
            raise UsageError(
                f"this is not a finding: {first_mistake(error)}", "Give code, quote and source."
            ) from error
        before = [known.finding() for known in workspace.handed_in(target)]
        found = with_checked(one, before, resolved, call.progress, machine=call.machine())
        workspace.hand_in(target, one)
        found.not_similar = workspace.config.not_similar
        return result(told_payload(found.diagnose()))

    tool = make_tool(add_finding, "add_finding", _DESCRIPTION, DiagnosisReply, read_only=False)
    # The other fields are those of `diagnose`, described only there.
    told = {"changed": {"type": "array"}, "verdict": {"type": "string"}, "headline": {"type": "string"}}
    tool.fn_metadata.output_schema = {"type": "object", "properties": told}
    return tool
