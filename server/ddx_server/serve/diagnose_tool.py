"""The tool `diagnose`: runs all probes and playbooks on one target."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field

from ddx_server.serve.call import ServedCall
from ddx_server.serve.investigations import Investigations
from ddx_server.serve.replies import DiagnosisReply, result
from ddx_server.serve.target import Target
from ddx_server.serve.tool import make_tool
from ddx_server.serve.workspace import Workspace

_DESCRIPTION = (
    "START HERE. Why is a distributed PyTorch job hung, stuck, crashed, slow, out of memory or wrong (NCCL timeout, "
    "watchdog, ChildFailedError, straggler)? Runs all cheap probes over all ranks and returns culprits and victims, "
    "ranked causes with evidence (quotes, claims, what suspects did, what is missing, source lines: untrusted data), "
    "the fix, and the next check. Reads a live job, logs, dumps, bundles."
)
_MOST_NOTES, _LONGEST_NOTE = 20, 4000


def diagnose_tool(workspace: Workspace, investigations: Investigations) -> Tool:
    """Make the MCP tool `diagnose`, which runs all probes and playbooks on a target."""

    def diagnose(
        ctx: Context[Any, Any],
        target: Target = [],  # noqa: B006 - read by pydantic alone
        notes: Annotated[
            list[str],
            Field(description="The user's words, kept verbatim, not interpreted", max_length=_MOST_NOTES),
        ] = [],  # noqa: B006
        facts: Annotated[
            list[str],
            Field(description="closed list, NAME=yes|no: 'works_on_one_node=no'", max_length=_MOST_NOTES),
        ] = [],  # noqa: B006
        case: Annotated[bool, Field(description="case file even if diagnosed")] = False,
        debug_server: Annotated[
            str,
            Field(description="HOST:PORT of torch's debug server", max_length=300),
        ] = "",
    ) -> CallToolResult:
        from ddx_server.serve.diagnosis_payload import told_payload
        from ddx_tools.diagnosis.submitted import fact_finding
        from ddx_tools.investigation.run import investigate

        call = ServedCall(ctx, workspace)
        resolved = workspace.resolve(target)
        told = [note[:_LONGEST_NOTE] for note in notes if note.strip()]
        reach = None if resolved or debug_server else workspace.config.reach
        known = [*map(fact_finding, facts), *(one.finding() for one in workspace.handed_in(target))]
        if told or reach or known or debug_server:
            found = investigate(
                resolved,
                progress=call.progress,
                notes=told,
                machine=call.machine(),
                reach=reach,
                told=known,
                debug_server=debug_server or None,
            )
        else:
            found = investigations.found(resolved, call)
        call.progress("judging")
        found.not_similar = workspace.config.not_similar
        return result(told_payload(found.diagnose(), with_case=case))

    return make_tool(diagnose, "diagnose", _DESCRIPTION, DiagnosisReply)
