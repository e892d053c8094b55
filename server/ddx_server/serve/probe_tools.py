"""Turns each probe into a tool; the probe's declaration is the only description."""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult
from pydantic import Field
from pydantic.fields import FieldInfo

from ddx_server.serve.call import ServedCall
from ddx_server.serve.permission import PERMISSION, permission_parameter, refuse_unless_permitted
from ddx_server.serve.replies import ProbeReply, result
from ddx_server.serve.target import Target
from ddx_server.serve.tool import make_tool, sign
from ddx_server.serve.workspace import Workspace
from ddx_tools.probes.declaration import PATH, Probe

_LONGEST_DESCRIPTION, _LONGEST_ARGUMENT = 195, 52


def probe_tool(probe: Probe[Any], workspace: Workspace) -> Tool:
    """Make the MCP tool that runs one probe, with name, description and arguments from its declaration.

    If the probe is not read-only, the user is asked before it runs.
    """

    def run(ctx: Context[Any, Any], **given: Any) -> CallToolResult:
        from ddx_server.serve.probe_payload import probe_payload
        from ddx_tools.investigation.session.plan import Step
        from ddx_tools.investigation.single_probe import run_probe

        if not probe.read_only:
            refuse_unless_permitted(given.pop(PERMISSION), probe, given)
        call = ServedCall(ctx, workspace)
        named = {name: workspace.place(given[name]) for name in paths if given[name]}
        step = Step(probe, {**given, **named, "target": workspace.resolve(given["target"])})
        found, _ = run_probe(step, call.progress, machine=call.machine())
        origin = workspace.sources(given["target"], found.origins)
        return result(probe_payload(found, given["target"], origin))

    offered = {name: field for name, field in probe.args.model_fields.items() if name not in probe.shell_only}
    paths = [name for name, field in offered.items() if field.json_schema_extra == PATH]
    parameters = [_parameter(name, field) for name, field in offered.items()]
    if not probe.read_only:
        parameters.append(permission_parameter(probe, parameters, workspace))
    sign(run, parameters, CallToolResult)
    described = _short(probe.description, _LONGEST_DESCRIPTION)
    return make_tool(run, probe.id, described, ProbeReply, read_only=probe.read_only, open_world=probe.sends_traffic)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    described = Field(
        description=_short(field.description or "", _LONGEST_ARGUMENT), json_schema_extra=field.json_schema_extra
    )
    annotation: Any = Target if name == "target" else Annotated[(field.annotation, *field.metadata, described)]
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _short(text: str, most: int) -> str:
    """The whole sentences, or at least clauses, of a text that fit into `most` characters."""
    if len(text) <= most:
        return text
    ends = [match.start() for match in re.finditer(r"[.;:,] ", text[:most])]
    return f"{text[: ends[-1] if ends else most]} …"
